//! The first process of a PID namespace: makes the mounts, forks the program, and reaps until no child is
//! left.
//!
//! Signals from inside the namespace do not affect it, and the kernel kills the rest of the namespace when
//! it ends. As in the guardian, this code does not allocate, lock or panic.
#![expect(unsafe_code, reason = "the copied program's descriptors and memory are released")]

use core::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, chdir, set_parent_process_death_signal, setpgid, waitid,
    waitpid,
};
use rustix::thread::UnshareFlags;

use crate::guardian::{WorkerPlan, at, report};
use crate::record::{Record, Stage};
use crate::sys::{self, Stack};
use crate::tree;

const PROCESS_NAME: &core::ffi::CStr = c"narrows-init";

pub(crate) struct InitPlan<'a, 'b> {
    pub(crate) worker: &'b mut WorkerPlan<'a>,
    pub(crate) program_stack: Stack<'a>,
    /// The procfs of the guardian, in which processes have their outer pids.
    pub(crate) proc: BorrowedFd<'b>,
    /// Socket to which init sends records, and from which it receives a reply to the last record.
    pub(crate) status: BorrowedFd<'b>,
    /// The guardian's end of `status`, which init must close.
    pub(crate) guardian_status: RawFd,
}

struct ProgramPlan<'a, 'b> {
    worker: &'b mut WorkerPlan<'a>,
    proc: BorrowedFd<'b>,
    status: BorrowedFd<'b>,
}

// SAFETY: as for the guardian.
unsafe impl sys::Program for InitPlan<'_, '_> {
    fn run(&mut self) -> c_int {
        match self.run_plan() {
            Ok(()) => 0,
            Err((stage, errno)) => {
                report(self.worker.report, Record::Failed { stage, errno: errno.raw_os_error() });
                1
            }
        }
    }
}

// SAFETY: as for the guardian.
unsafe impl sys::Program for ProgramPlan<'_, '_> {
    fn run(&mut self) -> c_int {
        let failure = self.prepare().err();
        let (stage, errno) = failure.unwrap_or_else(|| self.worker.execute());
        report(self.worker.report, Record::Failed { stage, errno: errno.raw_os_error() });
        127
    }
}

impl InitPlan<'_, '_> {
    fn run_plan(&mut self) -> Result<(), (Stage, Errno)> {
        // SAFETY: the descriptor is the guardian's, and no code of this process uses it.
        unsafe { sys::close(self.guardian_status) };
        at(Stage::Isolate, set_parent_process_death_signal(Some(Signal::KILL)))?;
        // Init cannot compare the guardian's pid, which does not exist in its namespace. But only the
        // guardian has the other end of the socket, so a hang-up means the guardian's death.
        if is_hung_up(self.status) {
            return Err((Stage::Isolate, Errno::SRCH));
        }
        _ = rustix::thread::set_name(PROCESS_NAME);
        if let Some(arguments) = tree::own_arguments(self.proc) {
            // The worker can read the arguments of init, and must not learn how the supervisor was started.
            //
            // SAFETY: the arguments are on the stack of a thread that this copy does not have.
            unsafe { sys::overwrite(&arguments, PROCESS_NAME.to_bytes()) };
        }
        self.worker.enter_mounts()?;

        let mut program = ProgramPlan { worker: &mut *self.worker, proc: self.proc, status: self.status };
        let program = sys::fork_child(self.program_stack, &mut program, UnshareFlags::empty());
        let program = at(Stage::Fork, program)?;
        // Init must close the worker's pipes above all, because their ends would not be seen while init has
        // them open.
        //
        // SAFETY: from here on, the process uses no descriptor but its end of the socket.
        let closed = unsafe { sys::close_all_but(&mut [self.status.as_raw_fd()]) };
        at(Stage::CloseDescriptors, closed)?;
        // Init moves to the root directory, because the worker's directory would be kept busy.
        _ = chdir(c"/");
        self.reap(program);
        Ok(())
    }

    /// Reaps init's children and the orphans of the namespace until none is left.
    fn reap(&self, program: Pid) {
        let mut program = Some(program);
        loop {
            let ended = match sys::find_ended_child() {
                Ok(ended) => ended,
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            // The comparison must not match again, because another process may get the same pid later.
            if program == Some(ended) {
                program = None;
                self.report_end(ended);
            }
            _ = waitpid(Some(ended), WaitOptions::empty());
        }
    }

    /// Reports the program's end, and waits for the guardian's confirmation. The guardian signals the
    /// program's group by number. After the program is reaped, another group may get that number.
    fn report_end(&self, program: Pid) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let Ok(Some(status)) = waitid(WaitId::Pid(program), options) else { return };
        report(self.status, Record::ended(status.exit_status(), status.terminating_signal()));
        while read(self.status, &mut [0; 1]).err() == Some(Errno::INTR) {}
    }
}

impl ProgramPlan<'_, '_> {
    fn prepare(&mut self) -> Result<(), (Stage, Errno)> {
        // The program needs no signal for the death of init, because the kernel then kills it.
        at(Stage::Isolate, setpgid(None, None))?;
        let pid = at(Stage::OpenProc, tree::own_pid(self.proc))?;
        for to in [self.worker.report, self.status] {
            report(to, Record::Started { pid });
        }
        self.worker.attach()?;
        self.worker.confine()
    }
}

fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok() && fds.iter().any(|fd| fd.revents().contains(PollFlags::HUP))
}
