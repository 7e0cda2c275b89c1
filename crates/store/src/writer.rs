//! The thread that owns the file: started by the first job, ended when the last handle is gone.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::{mpsc, oneshot};

use crate::StoreError;
use crate::claim::Claims;
use crate::ledger::Ledger;

/// How many jobs wait at most; whoever has one more waits for room.
const QUEUE: usize = 32;

type Job = Box<dyn FnOnce(&mut Desk) + Send>;

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
        let queue = self.queue()?;
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |desk| {
            // What the job holds, a claim perhaps, is let go before anybody hears of the result.
            let result = desk.run(job);
            if sender.send(result).is_err() {
                tracing::debug!("nobody waits for the result");
            }
        });
        queue.send(job).await.map_err(|_| StoreError::Stopped)?;
        receiver.await.map_err(|_| StoreError::Stopped)?
    }

    fn queue(&self) -> Result<mpsc::Sender<Job>, StoreError> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = &*queue {
            return Ok(queue.clone());
        }
        let (sender, mut receiver) = mpsc::channel::<Job>(QUEUE);
        let mut desk = Desk::new(Some(self.directory.clone()), self.claims.clone());
        let work = move || {
            while let Some(job) = receiver.blocking_recv() {
                job(&mut desk);
            }
        };
        let started = thread::Builder::new().name("sessions".to_owned()).spawn(work);
        started.map_err(|error| StoreError::io(&self.directory, &error))?;
        Ok(queue.insert(sender).clone())
    }
}
