//! Histories in the database: they grow by whole turns, and text that the user has seen is never removed.

use rusqlite::{OptionalExtension, Row, params};

use crate::claim::Held;
use crate::database::{Database, TextList, signed, unsigned};
use crate::sessions::key;
use crate::{StoreError, Timestamp, Turn};

impl Database {
    pub(crate) fn append(
        &mut self,
        held: &Held,
        turn: &Turn,
        title: Option<&str>,
    ) -> Result<u64, StoreError> {
        let claims = self.claims.clone();
        let id = held.id_in(&claims)?;
        self.write(|file| {
            // `RETURNING` is not used, because it would create a table for its one row.
            let mut last = file.prepare_cached("SELECT key, last_turn FROM sessions WHERE id = ?1")?;
            let numbers = last.query_row([id], |row| Ok((row.get(0)?, row.get(1)?)));
            let (session, last): (i64, i64) = numbers.optional()?.ok_or(StoreError::NotFound)?;
            let number = last + 1;
            // The clock may go back, but the session used last must stay first in the list.
            let mut update = file.prepare_cached(
                "UPDATE sessions SET last_turn = ?2, updated = max(updated, ?3), title = coalesce(?4, title)
                 WHERE key = ?1",
            )?;
            update.execute(params![session, number, Timestamp::now().as_millis(), title])?;
            let mut insert = file.prepare_cached(
                "INSERT INTO turns (session, number, messages, replay) VALUES (?1, ?2, ?3, ?4)",
            )?;
            let (messages, replay) = (TextList(turn.messages.as_slice()), TextList(turn.replay.as_slice()));
            insert.execute(params![session, number, messages, replay])?;
            Ok(unsigned(number))
        })
    }

    /// Replaces the messages of all turns up to `through` by `summary`.
    pub(crate) fn summarize(&mut self, held: &Held, through: u64, summary: &Turn) -> Result<(), StoreError> {
        let claims = self.claims.clone();
        let id = held.id_in(&claims)?;
        self.write(|file| {
            let session = key(file, id)?.ok_or(StoreError::NotFound)?;
            let bounds = file.query_row(
                "SELECT (SELECT max(1, coalesce(max(through), 1)) FROM summaries WHERE session = ?1), last_turn
                 FROM sessions WHERE key = ?1",
                [session],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
            let (least, last): (i64, i64) = bounds;
            if !(least..=last).contains(&signed(through)) {
                let (least, last) = (unsigned(least), unsigned(last));
                return Err(StoreError::BadTurn { through, least, last }.into());
            }
            file.execute(
                "INSERT OR REPLACE INTO summaries (session, through, messages, replay) VALUES (?1, ?2, ?3, ?4)",
                params![
                    session,
                    signed(through),
                    TextList(summary.messages.as_slice()),
                    TextList(summary.replay.as_slice())
                ],
            )?;
            Ok(())
        })
    }

    /// Returns the turns and summaries of session `id`. A summary comes after the last turn it covers.
    /// Turns covered by the newest summary have no messages.
    pub(crate) fn history(&mut self, id: &str) -> Result<Vec<Turn>, StoreError> {
        self.read(|file| {
            let session = key(file, id)?.ok_or(StoreError::NotFound)?;
            let covered: i64 = file.query_row(
                "SELECT coalesce(max(through), 0) FROM summaries WHERE session = ?1",
                [session],
                |row| row.get(0),
            )?;
            let mut turns = file.prepare_cached(
                "SELECT number, iif(number > ?2, messages, '[]'), replay FROM turns
                 WHERE session = ?1 ORDER BY number",
            )?;
            let mut summaries = file.prepare_cached(
                "SELECT through, iif(through = ?2, messages, '[]'), replay FROM summaries WHERE session = ?1",
            )?;
            let mut history = turns.query_map([session, covered], turn)?.collect::<Result<Vec<Turn>, _>>()?;
            for summary in summaries.query_map([session, covered], turn)? {
                history.push(summary?);
            }
            // The sort is stable, so a summary stays behind the turn of the same number.
            history.sort_by_key(|turn| turn.number);
            Ok(history)
        })
    }
}

fn turn(row: &Row<'_>) -> rusqlite::Result<Turn> {
    Ok(Turn {
        number: unsigned(row.get(0)?),
        messages: row.get::<_, TextList<_>>(1)?.0,
        replay: row.get::<_, TextList<_>>(2)?.0,
    })
}
