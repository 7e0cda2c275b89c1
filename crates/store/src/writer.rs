//! The thread that owns the file: started by the first job, ended when the last handle is gone.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use narrows_base::sync::lock;
use tokio::sync::{mpsc, oneshot};

use crate::StoreError;
use crate::claim::Claims;
use crate::ledger::Ledger;

/// How many jobs wait at most; whoever has one more waits for room.
const QUEUE: usize = 32;

/// Something to be done with the file.
enum Job {
    /// By itself.
    Alone(Box<dyn FnOnce(&mut Desk) + Send>),
    /// With others of its kind in one transaction, if several wait.
    Joint(Box<dyn Joint>),
}

/// A job that can be tried among others, and again by itself if that fails.
trait Joint: Send {
    /// Does it, and keeps what came of it.
    fn attempt(&mut self, ledger: &mut Ledger) -> Result<(), StoreError>;

    /// Forgets what came of it, for it was not stored.
    fn forget(&mut self);

    /// Tells whoever waits.
    fn tell(self: Box<Self>, outcome: Result<(), StoreError>);
}

struct Attempt<F, T> {
    work: F,
    value: Option<T>,
    sender: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> Joint for Attempt<F, T>
where
    F: FnMut(&mut Ledger) -> Result<T, StoreError> + Send,
    T: Send,
{
    fn attempt(&mut self, ledger: &mut Ledger) -> Result<(), StoreError> {
        self.value = Some((self.work)(ledger)?);
        Ok(())
    }

    fn forget(&mut self) {
        self.value = None;
    }

    fn tell(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { work, value, sender } = *self;
        // What the job holds, a claim perhaps, is let go before anybody hears of the result.
        drop(work);
        let result = outcome.and_then(|()| value.ok_or(StoreError::Stopped));
        if sender.send(result).is_err() {
            tracing::debug!("nobody waits for the result");
        }
    }
}

/// Where jobs are done, and the file once one has been.
pub(crate) struct Desk {
    directory: Option<PathBuf>,
    claims: Arc<Claims>,
    ledger: Option<Ledger>,
}

impl Desk {
    /// A desk for the file in `directory`, or one in memory.
    pub(crate) fn new(directory: Option<PathBuf>, claims: Arc<Claims>) -> Self {
        Self { directory, claims, ledger: None }
    }

    /// Does `job`, for which the file is opened if it is not. What failed to open is tried again the next time.
    pub(crate) fn run<T>(
        &mut self,
        job: impl FnOnce(&mut Ledger) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Some(ledger) = self.ledger.take_if(|ledger| !ledger.is_in_place()) {
            tracing::warn!("the file of the sessions has been removed or replaced");
            drop(ledger);
        }
        if let Some(ledger) = &mut self.ledger {
            return job(ledger);
        }
        let mut ledger = Ledger::open(self.directory.as_deref(), self.claims.clone())?;
        if let Some(directory) = &self.directory {
            ledger.tidy(directory);
        }
        job(self.ledger.insert(ledger))
    }

    /// Does `jobs`, in one transaction if that works.
    fn run_joint(&mut self, mut jobs: Vec<Box<dyn Joint>>) {
        if jobs.len() > 1 {
            let together = self.run(|ledger| {
                ledger.together(|ledger| jobs.iter_mut().try_for_each(|job| job.attempt(ledger)))
            });
            if together.is_ok() {
                return jobs.into_iter().for_each(|job| job.tell(Ok(())));
            }
            // What keeps one of them from being done is no reason not to do the others.
            jobs.iter_mut().for_each(|job| job.forget());
        }
        for mut job in jobs {
            let outcome = self.run(|ledger| job.attempt(ledger));
            job.tell(outcome);
        }
    }
}

/// Does what comes until nobody can send any more.
fn work(mut desk: Desk, mut queue: mpsc::Receiver<Job>) {
    while let Some(mut job) = queue.blocking_recv() {
        let mut joint = Vec::new();
        let alone = loop {
            match job {
                Job::Alone(alone) => break Some(alone),
                Job::Joint(one) => joint.push(one),
            }
            // What is taken must be done, so this is asked before.
            if joint.len() == QUEUE {
                break None;
            }
            match queue.try_recv() {
                Ok(next) => job = next,
                Err(_) => break None,
            }
        };
        desk.run_joint(joint);
        if let Some(alone) = alone {
            alone(&mut desk);
        }
    }
}

/// The way to the thread.
pub(crate) struct Writer {
    directory: PathBuf,
    claims: Arc<Claims>,
    queue: Mutex<Option<mpsc::Sender<Job>>>,
}

impl Writer {
    /// A thread to be started for the file in `directory`.
    pub(crate) fn new(directory: PathBuf, claims: Arc<Claims>) -> Self {
        Self { directory, claims, queue: Mutex::default() }
    }

    /// Has `job` done. It is also done if nobody waits for it any more, once it is in the queue.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Ledger) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let alone = Box::new(move |desk: &mut Desk| {
            // What the job holds is let go before anybody hears of the result.
            let result = desk.run(job);
            if sender.send(result).is_err() {
                tracing::debug!("nobody waits for the result");
            }
        });
        self.send(Job::Alone(alone)).await?;
        receiver.await.map_err(|_| StoreError::Stopped)?
    }

    /// The same for what may be stored together with others, and done twice if that fails.
    pub(crate) async fn run_joint<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Ledger) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.send(Job::Joint(Box::new(Attempt { work, value: None, sender }))).await?;
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
        let (sender, receiver) = mpsc::channel::<Job>(QUEUE);
        let desk = Desk::new(Some(self.directory.clone()), self.claims.clone());
        let work = move || work(desk, receiver);
        let started = thread::Builder::new().name("sessions".to_owned()).spawn(work);
        started.map_err(|error| StoreError::io(&self.directory, &error))?;
        Ok(queue.insert(sender).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewSession, Turn, schema};

    /// A job that does `work`, and where its outcome is told.
    fn job<T: Send + 'static>(
        work: impl FnMut(&mut Ledger) -> Result<T, StoreError> + Send + 'static,
    ) -> (Box<dyn Joint>, oneshot::Receiver<Result<T, StoreError>>) {
        let (sender, receiver) = oneshot::channel();
        (Box::new(Attempt { work, value: None, sender }), receiver)
    }

    fn new(id: &str) -> NewSession {
        NewSession { id: id.to_owned(), ..NewSession::default() }
    }

    fn desk_in(place: &std::path::Path) -> Desk {
        Desk::new(Some(place.to_owned()), Claims::new(Some(schema::locks(place))))
    }

    #[test]
    fn jobs_that_wait_together_are_stored_together() {
        let place = tempfile::tempdir().unwrap();
        let mut desk = desk_in(place.path());
        let claim = desk.run(|ledger| ledger.create(&new("a"))).unwrap();
        let (mut jobs, mut told) = (Vec::new(), Vec::new());
        for text in ["1", "2", "3"] {
            let held = claim.share();
            let turn = Turn::new(vec![text.to_owned()], Vec::new());
            let (job, receiver) = job(move |ledger| {
                assert!(ledger.is_among_others());
                ledger.append(&held, &turn, None)
            });
            jobs.push(job);
            told.push(receiver);
        }
        desk.run_joint(jobs);
        let numbers: Vec<_> = told.iter_mut().map(|told| told.try_recv().unwrap()).collect();
        assert_eq!(numbers, [Ok(1), Ok(2), Ok(3)]);
        // What is told is stored: another connection sees it.
        let mut other = desk_in(place.path());
        assert_eq!(other.run(|ledger| ledger.history("a")).unwrap().len(), 3);
    }

    #[test]
    fn none_of_many_jobs_is_lost() {
        let place = tempfile::tempdir().unwrap();
        let mut desk = desk_in(place.path());
        let claim = desk.run(|ledger| ledger.create(&new("a"))).unwrap();
        let count = 2 * QUEUE + 1;
        let (sender, queue) = mpsc::channel(count);
        let mut told = Vec::new();
        for _ in 0..count {
            let held = claim.share();
            let turn = Turn::new(Vec::new(), Vec::new());
            let (job, receiver) = job(move |ledger| ledger.append(&held, &turn, None));
            sender.try_send(Job::Joint(job)).ok().unwrap();
            told.push(receiver);
        }
        drop(sender);
        work(desk, queue);
        let numbers: Vec<_> = told.iter_mut().map(|told| told.try_recv().unwrap().unwrap()).collect();
        assert_eq!(numbers, (1..=count as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_job_that_fails_harms_no_other() {
        let place = tempfile::tempdir().unwrap();
        let mut desk = desk_in(place.path());
        let claim = desk.run(|ledger| ledger.create(&new("a"))).unwrap();
        let held = claim.share();
        let (append, mut number) =
            job(move |ledger| ledger.append(&held, &Turn::new(Vec::new(), Vec::new()), None));
        let (create, mut created) = job(|ledger| ledger.create(&new("b")));
        let (twice, mut exists) = job(|ledger| ledger.create(&new("a")));
        desk.run_joint(vec![append, create, twice]);
        assert_eq!(number.try_recv().unwrap(), Ok(1), "once, although it was tried twice");
        assert_eq!(created.try_recv().unwrap().unwrap().id(), "b");
        assert_eq!(exists.try_recv().unwrap().err(), Some(StoreError::Exists));
        assert_eq!(desk.run(|ledger| ledger.history("a")).unwrap().len(), 1);
    }
}
