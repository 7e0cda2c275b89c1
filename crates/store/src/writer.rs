//! The thread that owns the database: it starts with the first job and ends after the last handle is
//! dropped.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use narrows_base::sync::lock;
use tokio::sync::{mpsc, oneshot};

use crate::StoreError;
use crate::claim::Claims;
use crate::database::Database;

/// Limit of queued jobs; further callers wait.
const QUEUE_JOBS: usize = 32;

enum Job {
    /// A job that runs in a transaction of its own.
    Alone(Box<dyn FnOnce(&mut DbThread) + Send>),
    /// A job that shares a transaction with other queued jobs.
    BatchJob(Box<dyn BatchJob>),
}

/// A job that can run in a batch, and again by itself if the batch fails.
trait BatchJob: Send {
    fn attempt(&mut self, database: &mut Database) -> Result<(), StoreError>;

    fn discard_result(&mut self);

    fn send_result(self: Box<Self>, outcome: Result<(), StoreError>);
}

struct Attempt<F, T> {
    work: F,
    value: Option<T>,
    sender: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> BatchJob for Attempt<F, T>
where
    F: FnMut(&mut Database) -> Result<T, StoreError> + Send,
    T: Send,
{
    fn attempt(&mut self, database: &mut Database) -> Result<(), StoreError> {
        self.value = Some((self.work)(database)?);
        Ok(())
    }

    fn discard_result(&mut self) {
        self.value = None;
    }

    fn send_result(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { work, value, sender } = *self;
        // Values held by the job, such as a claim, are dropped before the caller gets the result.
        drop(work);
        let result = outcome.and_then(|()| value.ok_or(StoreError::Stopped));
        if sender.send(result).is_err() {
            tracing::debug!("result dropped: caller gone");
        }
    }
}

/// Runs jobs, and owns the database once it is open.
pub(crate) struct DbThread {
    directory: Option<PathBuf>,
    claims: Arc<Claims>,
    database: Option<Database>,
}

impl DbThread {
    /// Creates a runner for the database in `directory`, or one in memory.
    pub(crate) fn new(directory: Option<PathBuf>, claims: Arc<Claims>) -> Self {
        Self { directory, claims, database: None }
    }

    /// Runs `job`, opening the database if needed. A failed opening is retried by the next job.
    pub(crate) fn run<T>(
        &mut self,
        job: impl FnOnce(&mut Database) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Some(database) = self.database.take_if(|database| !database.is_in_place()) {
            tracing::warn!("session store file removed or replaced");
            drop(database);
        }
        if let Some(database) = &mut self.database {
            return job(database);
        }
        let mut database = Database::open(self.directory.as_deref(), self.claims.clone())?;
        if let Some(directory) = &self.directory {
            database.tidy(directory);
        }
        job(self.database.insert(database))
    }

    /// Runs `jobs` in one transaction. If the transaction fails, runs each job in a transaction of its own.
    fn run_batched(&mut self, mut jobs: Vec<Box<dyn BatchJob>>) {
        if jobs.len() > 1 {
            let together = self.run(|database| {
                database
                    .in_one_transaction(|database| jobs.iter_mut().try_for_each(|job| job.attempt(database)))
            });
            if together.is_ok() {
                return jobs.into_iter().for_each(|job| job.send_result(Ok(())));
            }
            // One failed job must not prevent the others, so the results are discarded and each job runs
            // again.
            jobs.iter_mut().for_each(|job| job.discard_result());
        }
        for mut job in jobs {
            let outcome = self.run(|database| job.attempt(database));
            job.send_result(outcome);
        }
    }
}

fn work(mut db_thread: DbThread, mut queue: mpsc::Receiver<Job>) {
    while let Some(mut job) = queue.blocking_recv() {
        let mut joint = Vec::new();
        let alone = loop {
            match job {
                Job::Alone(alone) => break Some(alone),
                Job::BatchJob(one) => joint.push(one),
            }
            // Checked before a job is received, because a received job must be run.
            if joint.len() == QUEUE_JOBS {
                break None;
            }
            match queue.try_recv() {
                Ok(next) => job = next,
                Err(_) => break None,
            }
        };
        db_thread.run_batched(joint);
        if let Some(alone) = alone {
            alone(&mut db_thread);
        }
    }
}

pub(crate) struct Writer {
    directory: PathBuf,
    claims: Arc<Claims>,
    queue: Mutex<Option<mpsc::Sender<Job>>>,
}

impl Writer {
    pub(crate) fn new(directory: PathBuf, claims: Arc<Claims>) -> Self {
        Self { directory, claims, queue: Mutex::default() }
    }

    /// Runs `job`. A queued job runs even if its caller is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let alone = Box::new(move |db_thread: &mut DbThread| {
            // Values held by the job, such as a claim, are dropped before the caller gets the result.
            let result = db_thread.run(job);
            if sender.send(result).is_err() {
                tracing::debug!("result dropped: caller gone");
            }
        });
        self.send(Job::Alone(alone)).await?;
        receiver.await.map_err(|_| StoreError::Stopped)?
    }

    /// Runs a job that may share a transaction with others. If the shared transaction fails, the job runs
    /// again by itself.
    pub(crate) async fn run_batched<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.send(Job::BatchJob(Box::new(Attempt { work, value: None, sender }))).await?;
        receiver.await.map_err(|_| StoreError::Stopped)?
    }

    async fn send(&self, job: Job) -> Result<(), StoreError> {
        self.queue()?.send(job).await.map_err(|_| StoreError::Stopped)
    }

    fn queue(&self) -> Result<mpsc::Sender<Job>, StoreError> {
        let mut queue = lock(&self.queue);
        if let Some(queue) = &*queue {
            return Ok(queue.clone());
        }
        let (sender, receiver) = mpsc::channel::<Job>(QUEUE_JOBS);
        let db_thread = DbThread::new(Some(self.directory.clone()), self.claims.clone());
        let work = move || work(db_thread, receiver);
        let started = thread::Builder::new().name("sessions".to_owned()).spawn(work);
        started.map_err(|error| StoreError::io(&self.directory, &error))?;
        Ok(queue.insert(sender).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewSession, Turn, schema};

    fn job<T: Send + 'static>(
        work: impl FnMut(&mut Database) -> Result<T, StoreError> + Send + 'static,
    ) -> (Box<dyn BatchJob>, oneshot::Receiver<Result<T, StoreError>>) {
        let (sender, receiver) = oneshot::channel();
        (Box::new(Attempt { work, value: None, sender }), receiver)
    }

    fn new(id: &str) -> NewSession {
        NewSession { id: id.to_owned(), ..NewSession::default() }
    }

    fn db_thread_in(place: &std::path::Path) -> DbThread {
        DbThread::new(Some(place.to_owned()), Claims::new(Some(schema::locks(place))))
    }

    #[test]
    fn jobs_that_wait_together_are_stored_together() {
        let place = tempfile::tempdir().unwrap();
        let mut db_thread = db_thread_in(place.path());
        let claim = db_thread.run(|database| database.create(&new("a"))).unwrap();
        let (mut jobs, mut told) = (Vec::new(), Vec::new());
        for text in ["1", "2", "3"] {
            let held = claim.share();
            let turn = Turn::new(vec![text.to_owned()], Vec::new());
            let (job, receiver) = job(move |database| {
                assert!(database.in_transaction());
                database.append(&held, &turn, None)
            });
            jobs.push(job);
            told.push(receiver);
        }
        db_thread.run_batched(jobs);
        let numbers: Vec<_> = told.iter_mut().map(|told| told.try_recv().unwrap()).collect();
        assert_eq!(numbers, [Ok(1), Ok(2), Ok(3)]);
        // A job reports its result only after the commit: another connection sees the data.
        let mut other = db_thread_in(place.path());
        assert_eq!(other.run(|database| database.history("a")).unwrap().len(), 3);
    }

    #[test]
    fn none_of_many_jobs_is_lost() {
        let place = tempfile::tempdir().unwrap();
        let mut db_thread = db_thread_in(place.path());
        let claim = db_thread.run(|database| database.create(&new("a"))).unwrap();
        let count = 2 * QUEUE_JOBS + 1;
        let (sender, queue) = mpsc::channel(count);
        let mut told = Vec::new();
        for _ in 0..count {
            let held = claim.share();
            let turn = Turn::new(Vec::new(), Vec::new());
            let (job, receiver) = job(move |database| database.append(&held, &turn, None));
            sender.try_send(Job::BatchJob(job)).ok().unwrap();
            told.push(receiver);
        }
        drop(sender);
        work(db_thread, queue);
        let numbers: Vec<_> = told.iter_mut().map(|told| told.try_recv().unwrap().unwrap()).collect();
        assert_eq!(numbers, (1..=count as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_job_that_fails_harms_no_other() {
        let place = tempfile::tempdir().unwrap();
        let mut db_thread = db_thread_in(place.path());
        let claim = db_thread.run(|database| database.create(&new("a"))).unwrap();
        let held = claim.share();
        let (append, mut number) =
            job(move |database| database.append(&held, &Turn::new(Vec::new(), Vec::new()), None));
        let (create, mut created) = job(|database| database.create(&new("b")));
        let (twice, mut exists) = job(|database| database.create(&new("a")));
        db_thread.run_batched(vec![append, create, twice]);
        assert_eq!(number.try_recv().unwrap(), Ok(1), "stored once, although the job ran twice");
        assert_eq!(created.try_recv().unwrap().unwrap().id(), "b");
        assert_eq!(exists.try_recv().unwrap().err(), Some(StoreError::Exists));
        assert_eq!(db_thread.run(|database| database.history("a")).unwrap().len(), 1);
    }
}
