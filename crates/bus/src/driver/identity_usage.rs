//! Connections and bytes of incomplete messages of each identity in the event loop.

use std::collections::HashMap;

use crate::core::{ANYONE, Time};

use super::connections::{ClientConn, Connections};

/// The accounts of all identities seen so far. None is removed: tokens, certificates and users limit their
/// number.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    numbers: HashMap<Box<str>, u32>,
    each: Vec<Account>,
    pub(super) unfinished: usize,
    pub(super) descriptors: usize,
}

#[derive(Debug, Default)]
struct Account {
    connections: usize,
    unfinished: usize,
}

impl Accounts {
    pub(super) fn number(&mut self, identity: &str) -> u32 {
        if let Some(number) = self.numbers.get(identity) {
            return *number;
        }
        let number = u32::try_from(self.each.len()).unwrap_or(u32::MAX);
        self.each.push(Account::default());
        self.numbers.insert(identity.into(), number);
        number
    }

    pub(super) fn anonymous(&self) -> usize {
        let number = self.numbers.get(ANYONE).copied();
        number.and_then(|number| self.each.get(number as usize)).map_or(0, |account| account.connections)
    }

    pub(super) fn unfinished_of(&self, number: u32) -> usize {
        self.each.get(number as usize).map_or(0, |account| account.unfinished)
    }

    pub(super) fn open(&mut self, conn: &ClientConn) {
        self.descriptors += conn.descriptors;
        if let Some(account) = self.each.get_mut(conn.account as usize) {
            account.connections += 1;
        }
    }

    fn close(&mut self, conn: &ClientConn) {
        self.descriptors -= conn.descriptors;
        self.unfinished -= conn.unfinished;
        if let Some(account) = self.each.get_mut(conn.account as usize) {
            account.connections -= 1;
            account.unfinished -= conn.unfinished;
        }
    }

    pub(super) fn hold(&mut self, conn: &mut ClientConn, bytes: usize, now: Time) {
        if conn.unfinished == 0 {
            conn.begun = now;
        }
        let before = std::mem::replace(&mut conn.unfinished, bytes);
        self.unfinished = self.unfinished - before + bytes;
        if let Some(account) = self.each.get_mut(conn.account as usize) {
            account.unfinished = account.unfinished - before + bytes;
        }
    }
}

impl Connections {
    /// Removes a connection, and subtracts it from the counts of its identity.
    pub(super) fn take_client(&mut self, slot: u32) -> Option<ClientConn> {
        let conn = self.clients.get_mut(slot as usize).and_then(Option::take)?;
        self.accounts.close(&conn);
        Some(conn)
    }
}
