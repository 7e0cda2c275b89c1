//! A disk in memory that fails on demand, and loses data that was not synced.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use narrows_audit::{FileStatus, LogDirectory, LogFile};

const SECTOR: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is written, and an error is returned.
    Refuse,
    /// A part is written. Then the disk is full.
    Fill,
    /// A part is written. Then the process is killed.
    Kill,
    /// Everything is written and nothing is synced. Then the power fails, and some sectors survive.
    PowerCut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Writes,
    Syncs,
    All,
}

/// The operation at which the fault happens first, and the number of operations that it affects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) counted: Counted,
    pub(crate) at: u32,
    pub(crate) times: u32,
    pub(crate) fault: Fault,
}

/// A disk. Clones share its content.
#[derive(Clone)]
pub(crate) struct Memory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: Vec<Inode>,
    names: BTreeMap<String, usize>,
    kept: BTreeMap<String, usize>,
    plan: Option<Plan>,
    count: u32,
    fired: u32,
    dead: bool,
    seed: u64,
}

#[derive(Clone, Default)]
struct Inode {
    data: Vec<u8>,
    kept: Vec<u8>,
    /// A sync has failed, but the system believes that it succeeded.
    lost: bool,
    /// The file was synced again after a failed sync.
    asked_again: bool,
}

impl Memory {
    pub(crate) fn new(plan: Option<Plan>, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State { plan, seed: seed | 1, ..State::default() })))
    }

    /// Returns another disk with the same content.
    pub(crate) fn copy(&self, plan: Plan, seed: u64) -> Self {
        let state = self.state();
        let (files, names, kept) = (state.files.clone(), state.names.clone(), state.kept.clone());
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self(Arc::new(Mutex::new(State { files, names, kept, plan: Some(plan), seed, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("alive")
    }

    pub(crate) fn fired(&self) -> bool {
        self.state().fired > 0
    }

    /// Returns `true` if a file was synced again after a failed sync.
    pub(crate) fn asked_again(&self) -> bool {
        self.state().files.iter().any(|file| file.asked_again)
    }

    pub(crate) fn cut_power(&self) {
        self.state().cut_power();
    }

    /// Returns the disk after a restart, without faults.
    pub(crate) fn restart(&self) {
        let mut state = self.state();
        state.dead = false;
        state.plan = None;
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        let state = self.state();
        let sealed =
            state.names.iter().filter(|(name, _)| name.len() > "log.jsonl".len() && name.ends_with(".jsonl"));
        let files = sealed.chain(state.names.iter().filter(|(name, _)| *name == "log.jsonl"));
        files.flat_map(|(_, &file)| state.files[file].data.clone()).collect()
    }

    pub(crate) fn files(&self) -> usize {
        self.state().names.len()
    }

    /// Changes a byte of a file, as a damaged disk does.
    pub(crate) fn damage(&self, name: &str, at: usize) {
        let mut state = self.state();
        let file = state.names[name];
        state.files[file].data[at] ^= 1;
        state.files[file].kept[at] ^= 1;
    }
}

impl State {
    /// Counts an operation. Returns the fault that happens to it.
    fn step(&mut self, kinds: &[Counted]) -> Option<Fault> {
        let plan = self.plan?;
        if !kinds.contains(&plan.counted) {
            return None;
        }
        self.count += 1;
        let hit = (plan.at..plan.at + plan.times).contains(&self.count);
        self.fired += u32::from(hit);
        hit.then_some(plan.fault)
    }

    /// Counts an operation that cannot be done in part.
    fn whole(&mut self, kinds: &[Counted]) -> io::Result<()> {
        self.alive()?;
        match self.step(kinds) {
            None => Ok(()),
            Some(Fault::Refuse | Fault::Fill) => Err(io::ErrorKind::StorageFull.into()),
            Some(Fault::Kill) => self.die(),
            Some(Fault::PowerCut) => {
                self.cut_power();
                self.die()
            }
        }
    }

    fn alive(&self) -> io::Result<()> {
        if self.dead { Err(io::Error::other("killed")) } else { Ok(()) }
    }

    fn die(&mut self) -> io::Result<()> {
        self.dead = true;
        self.alive()
    }

    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }

    /// Loses data that was not synced, except for some sectors and some names.
    fn cut_power(&mut self) {
        for at in 0..self.files.len() {
            let Inode { data, kept, lost, .. } = self.files[at].clone();
            if data.len() < kept.len() || lost {
                self.files[at].data = kept;
                continue;
            }
            let mut found = kept.clone();
            let length = match self.random() % 3 {
                0 => kept.len(),
                1 => data.len(),
                _ => kept.len() + usize::try_from(self.random()).unwrap_or(0) % (data.len() - kept.len() + 1),
            };
            found.resize(length, 0);
            let mut from = kept.len();
            while from < length {
                let to = ((from / SECTOR + 1) * SECTOR).min(length);
                if self.random().is_multiple_of(2) {
                    found[from..to].copy_from_slice(&data[from..to]);
                }
                from = to;
            }
            self.files[at] = Inode { data: found.clone(), kept: found, ..Inode::default() };
        }
        // Names are journaled in order: either all of them survive, or only the synced ones.
        if self.random().is_multiple_of(2) {
            self.names = self.kept.clone();
        }
        self.kept = self.names.clone();
    }
}

impl LogDirectory for Memory {
    fn lock(&mut self, _: Duration) -> io::Result<()> {
        self.state().alive()
    }

    fn unlock(&mut self) {}

    fn list_names(&mut self) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.whole(&[Counted::All])?;
        Ok(state.names.keys().cloned().collect())
    }

    fn status(&mut self, name: &str) -> io::Result<Option<FileStatus>> {
        let mut state = self.state();
        state.whole(&[Counted::All])?;
        let file = state.names.get(name).copied();
        Ok(file
            .map(|file| FileStatus { file: (0, file as u64), length: state.files[file].data.len() as u64 }))
    }

    fn open(&mut self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let mut state = self.state();
        state.whole(&[Counted::All])?;
        let file = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Opened { disk: self.0.clone(), file }))
    }

    fn create(&mut self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let mut state = self.state();
        state.whole(&[Counted::All])?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = state.files.len();
        state.files.push(Inode::default());
        state.names.insert(name.to_owned(), file);
        Ok(Box::new(Opened { disk: self.0.clone(), file }))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.whole(&[Counted::All])?;
        let file = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.whole(&[Counted::All])?;
        state.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        let mut state = self.state();
        state.whole(&[Counted::All, Counted::Syncs])?;
        state.kept = state.names.clone();
        Ok(())
    }
}

struct Opened {
    disk: Arc<Mutex<State>>,
    file: usize,
}

impl Opened {
    fn state(&self) -> MutexGuard<'_, State> {
        self.disk.lock().expect("alive")
    }
}

impl LogFile for Opened {
    fn status(&self) -> io::Result<FileStatus> {
        let mut state = self.state();
        state.whole(&[Counted::All])?;
        Ok(FileStatus { file: (0, self.file as u64), length: state.files[self.file].data.len() as u64 })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state();
        state.whole(&[Counted::All])?;
        let data = &state.files[self.file].data;
        let rest = data.get(usize::try_from(offset).expect("small")..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.alive()?;
        let fault = state.step(&[Counted::All, Counted::Writes]);
        let part = usize::try_from(state.random()).unwrap_or(0) % bytes.len().max(1);
        let data = &mut state.files[self.file].data;
        match fault {
            None => data.extend_from_slice(bytes),
            Some(Fault::Refuse) => return Err(io::ErrorKind::StorageFull.into()),
            Some(Fault::Fill) => {
                data.extend_from_slice(&bytes[..part]);
                return Err(io::ErrorKind::StorageFull.into());
            }
            Some(Fault::Kill) => {
                data.extend_from_slice(&bytes[..part]);
                return state.die();
            }
            Some(Fault::PowerCut) => {
                data.extend_from_slice(bytes);
                state.cut_power();
                return state.die();
            }
        }
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        let mut state = self.state();
        state.whole(&[Counted::All])?;
        let length = usize::try_from(length).expect("small");
        state.files[self.file].data.truncate(length);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.state();
        let done = state.whole(&[Counted::All, Counted::Syncs]);
        let dead = state.dead;
        let file = &mut state.files[self.file];
        if file.lost {
            file.asked_again = true;
            // The sync reports success and keeps nothing.
            return Ok(());
        }
        match done {
            Ok(()) => file.kept = file.data.clone(),
            Err(_) if !dead => file.lost = true,
            Err(_) => {}
        }
        done
    }
}
