//! Creates, opens, lists, changes and deletes sessions.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::claim::{Claim, Held};
use crate::cursor::Cursor;
use crate::database::{Database, DbError, TextList, signed, unsigned};
use crate::{Change, NewSession, Page, Record, StoreError, Timestamp};

/// Limit of an id. The escaped id must still be a valid file name.
const MAX_ID_BYTES: usize = 64;

const MAX_PAGE_SESSIONS: usize = 1000;

const RECORD: &str = "SELECT id, cwd, roots, title, created, updated, settings, last_turn FROM sessions";

impl Database {
    pub(crate) fn create(&mut self, new: &NewSession) -> Result<Claim, StoreError> {
        let claim = self.claim_new(&new.id)?;
        self.write(|file| insert(file, new).map(drop))?;
        Ok(claim)
    }

    pub(crate) fn fork(&mut self, from: &str, new: &NewSession) -> Result<Claim, StoreError> {
        let claim = self.claim_new(&new.id)?;
        self.write(|file| {
            let source = key(file, from)?.ok_or(StoreError::NotFound)?;
            let target = insert(file, new)?;
            file.execute(
                "UPDATE sessions SET (title, last_turn) =
                 (SELECT title, last_turn FROM sessions WHERE key = ?1) WHERE key = ?2",
                [source, target],
            )?;
            file.execute(
                "INSERT INTO turns (session, number, messages, replay)
                 SELECT ?2, number, messages, replay FROM turns WHERE session = ?1",
                [source, target],
            )?;
            file.execute(
                "INSERT INTO summaries (session, through, messages, replay)
                 SELECT ?2, through, messages, replay FROM summaries WHERE session = ?1",
                [source, target],
            )?;
            Ok(())
        })?;
        Ok(claim)
    }

    fn claim_new(&self, id: &str) -> Result<Claim, StoreError> {
        if id.is_empty() || id.len() > MAX_ID_BYTES {
            return Err(StoreError::BadId);
        }
        self.claims.claim(id).map_err(|error| match error {
            StoreError::InUse { .. } => StoreError::Exists,
            error => error,
        })
    }

    pub(crate) fn claim(&mut self, id: &str) -> Result<(Claim, Record), StoreError> {
        // Checked before locking: an id that was never stored may be invalid as a file name.
        self.record(id)?.ok_or(StoreError::NotFound)?;
        let claim = self.claims.claim(id)?;
        // The record is read again: another process may have changed or deleted the session before it was
        // claimed.
        let record = self.record(id)?.ok_or(StoreError::NotFound)?;
        Ok((claim, record))
    }

    pub(crate) fn record(&mut self, id: &str) -> Result<Option<Record>, StoreError> {
        self.read(|file| {
            let mut query = file.prepare_cached(&format!("{RECORD} WHERE id = ?1"))?;
            Ok(query.query_row([id], record).optional()?)
        })
    }

    /// Returns at most `limit` sessions after `cursor`, most recently used first.
    pub(crate) fn list(
        &mut self,
        cwd: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let cursor = cursor.map(Cursor::parse).transpose()?;
        let limit = limit.clamp(1, MAX_PAGE_SESSIONS);
        let mut sessions = self.read(|file| {
            // There are two statements instead of one condition, so that each can use its index.
            let place = if cwd.is_some() { "cwd = ?1" } else { "?1 IS NULL" };
            let after =
                if cursor.is_some() { "(updated, id) < (?2, ?3)" } else { "?2 IS NULL AND ?3 IS NULL" };
            let order = "ORDER BY updated DESC, id DESC LIMIT ?4";
            let mut query = file.prepare_cached(&format!("{RECORD} WHERE {place} AND {after} {order}"))?;
            let updated = cursor.as_ref().map(|cursor| cursor.updated);
            let id = cursor.as_ref().map(|cursor| &cursor.id);
            // One row more than fits on the page shows whether there is a next page.
            let rows = query.query_map(params![cwd, updated, id, signed(limit as u64 + 1)], record)?;
            Ok(rows.collect::<Result<Vec<_>, _>>()?)
        })?;
        let more = sessions.len() > limit;
        sessions.truncate(limit);
        let last = sessions.last().filter(|_| more);
        let next =
            last.map(|last| Cursor { updated: last.updated.as_millis(), id: last.id.clone() }.to_text());
        Ok(Page { sessions, next })
    }

    pub(crate) fn delete(&mut self, id: &str) -> Result<bool, StoreError> {
        if self.record(id)?.is_none() {
            return Ok(false);
        }
        // The claim is held during the deletion, so that no other process opens the session.
        let _claim = match self.claims.claim(id) {
            Ok(claim) => Some(claim),
            Err(StoreError::InUse { by_us: true }) => None,
            Err(error) => return Err(error),
        };
        self.write(|file| Ok(file.execute("DELETE FROM sessions WHERE id = ?1", [id])? > 0))
    }

    pub(crate) fn set(&mut self, held: &Held, change: &Change) -> Result<(), StoreError> {
        let claims = self.claims.clone();
        let id = held.id_in(&claims)?;
        self.write(|file| {
            let changed = match change {
                Change::Title(title) => {
                    file.execute("UPDATE sessions SET title = ?2 WHERE id = ?1", params![id, title])
                }
                Change::Settings(settings) => {
                    file.execute("UPDATE sessions SET settings = ?2 WHERE id = ?1", params![id, settings])
                }
                Change::Place { cwd, roots } => file.execute(
                    "UPDATE sessions SET cwd = ?2, roots = ?3 WHERE id = ?1",
                    params![id, cwd, TextList(roots.as_slice())],
                ),
            };
            if changed? == 0 { Err(StoreError::NotFound.into()) } else { Ok(()) }
        })
    }
}

pub(crate) fn key(file: &Connection, id: &str) -> Result<Option<i64>, DbError> {
    let mut query = file.prepare_cached("SELECT key FROM sessions WHERE id = ?1")?;
    Ok(query.query_row([id], |row| row.get(0)).optional()?)
}

/// Inserts a session without turns. Returns its key.
fn insert(file: &Connection, new: &NewSession) -> Result<i64, DbError> {
    let mut query = file.prepare_cached(
        "INSERT INTO sessions (id, cwd, roots, settings, created, updated) VALUES (?1, ?2, ?3, ?4, ?5, ?5)
         ON CONFLICT (id) DO NOTHING",
    )?;
    let now = Timestamp::now().as_millis();
    let inserted =
        query.execute(params![new.id, new.cwd, TextList(new.roots.as_slice()), new.settings, now])?;
    if inserted == 0 { Err(StoreError::Exists.into()) } else { Ok(file.last_insert_rowid()) }
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record {
        id: row.get(0)?,
        cwd: row.get(1)?,
        roots: row.get::<_, TextList<_>>(2)?.0,
        title: row.get(3)?,
        created: Timestamp::from_millis(row.get(4)?),
        updated: Timestamp::from_millis(row.get(5)?),
        settings: row.get(6)?,
        turns: unsigned(row.get(7)?),
    })
}
