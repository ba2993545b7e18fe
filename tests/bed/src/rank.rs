//! One rank: its communicators, its operations, its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::controller;
use crate::elsewhere;
use crate::link::{Command, Event, Link, Report};
use crate::nccl_api::CommHandle;
use crate::options::{Mode, Options};
use crate::runtime::stream::Stream;
use crate::runtime::{device, launch};
use crate::setup::{self, Nccl};
use crate::workload;

/// A communicator of this rank, and the stream that its operations go to.
#[derive(Clone)]
pub(crate) struct Comm {
    handle: usize,
    /// The rank's number in it.
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) stream: Arc<Stream>,
}

impl Comm {
    pub(crate) fn handle(&self) -> CommHandle {
        self.handle as CommHandle
    }
}

/// Time within which a rank comes back by itself when the time is up.
const RETURNS_WITHIN: Duration = Duration::from_secs(2);

/// Runs a rank from its communicators to its end. Errors are reported over the link.
pub(crate) fn run(options: &Options, nccl: &Nccl, rank: u32, mut link: impl Link) {
    if let Err(error) = live(options, nccl, rank, &mut link) {
        // If this fails, the controller sees a closed link.
        let _gone = link.tell(setup::failed(rank, &error));
    }
}

fn live(options: &Options, nccl: &Nccl, rank: u32, link: &mut impl Link) -> Result<()> {
    device::set_current(options.device_of(rank) as i32);
    let Command::Connect(ids) = link.hear()? else { bail!("expected the unique ids") };
    if let Some((_, more)) = options.few_files.filter(|(one, _)| *one == rank) {
        limit_files(more)?;
    }
    let mut comms = Vec::new();
    let mut comm_hashes = Vec::new();
    for (number, id) in (0..).zip(&ids) {
        while options.stays_out == Some((rank, number)) {
            // Until the process is killed.
            thread::park();
        }
        let id = if options.own_ids { nccl.api.unique_id()? } else { setup::from_hex(id)? };
        let handle = nccl.api.comm_init_rank(options, id, rank)?;
        comm_hashes.push(nccl.emulator.register(handle as usize));
        // A stream that computes is the only one: what comes behind waits for it.
        let first: Option<&Comm> = comms.first().filter(|_| options.compute_ms > 0.0);
        let stream = first.map(|first| Arc::clone(&first.stream)).unwrap_or_default();
        comms.push(Comm { handle: handle as usize, rank, ranks: options.ranks, stream });
    }
    if let (Some(_), [all]) = (options.stages, &comms[..]) {
        let (ranks, stream) = (options.ranks_of_stage(), Arc::clone(&all.stream));
        let handle = nccl.api.comm_split(all.handle(), Some(rank / ranks), rank)?;
        comm_hashes.push(nccl.emulator.register(handle as usize));
        comms.push(Comm { handle: handle as usize, rank: rank % ranks, ranks, stream });
    }
    if options.fork && options.mode == Mode::Processes {
        controller::fork_idle_child(std::os::unix::process::parent_id())?;
    }
    link.tell(Event::Ready { rank, nccl: nccl.version.clone(), comm_hashes })?;

    let Command::Go = link.hear()? else { bail!("expected the word to go") };
    let started = Instant::now();
    let deadline = started + options.timeout();
    let aborted = AtomicBool::new(false);
    let (finished, watched) = mpsc::channel::<()>();
    let mut report = Report::default();
    thread::scope(|scope| {
        // NCCL's own calls may hang, so another thread aborts when the time is up, and the rank has not come
        // back by itself: NCCL frees a communicator that is aborted, also while a call uses it.
        let (aborting, comms) = (&aborted, &comms);
        let watchdog = scope.spawn(move || {
            let left = deadline.saturating_duration_since(Instant::now());
            if watched.recv_timeout(left + RETURNS_WITHIN) == Err(mpsc::RecvTimeoutError::Timeout) {
                aborting.store(true, Ordering::SeqCst);
                abort_all(nccl, comms);
            }
        });
        if options.spinner == Some(rank) {
            let spin = move || elsewhere::compute(deadline);
            thread::Builder::new().name("service".to_owned()).spawn(spin)?;
        }
        let mut work = || {
            device::set_current(options.device_of(rank) as i32);
            workload::run(options, nccl, rank, comms, deadline, &mut report)
        };
        let result = if options.worker == Some(rank) {
            thread::scope(|scope| {
                let worker = thread::Builder::new().name("worker".to_owned()).spawn_scoped(scope, work)?;
                worker.join().unwrap_or_else(|_| Err(anyhow!("the worker panicked")))
            })
        } else {
            work()
        };
        // Fails only if the watchdog has ended already.
        let _ended = finished.send(());
        if report.timed_out || (result.is_err() && aborted.load(Ordering::SeqCst)) {
            report.timed_out = true;
        } else {
            result?;
        }
        if watchdog.join().is_err() {
            bail!("the watchdog panicked");
        }
        anyhow::Ok(())
    })?;
    report.seconds = started.elapsed().as_secs_f64();
    report.launches = launch::count();
    let timed_out = report.timed_out;
    link.tell(Event::Done { rank, report })?;
    let Command::Release = link.hear()? else { bail!("expected the word to release") };
    if options.no_emulate {
        // The proxies still wait for kernels that moved nothing.
        abort_all(nccl, &comms);
    } else if !timed_out {
        for comm in &comms {
            nccl.api.comm_destroy(comm.handle())?;
        }
    }
    link.tell(Event::Gone { rank })
}

/// Lets this process open so many files more than it has.
fn limit_files(more: u32) -> Result<()> {
    let open = std::fs::read_dir("/proc/self/fd")?.count() - 1;
    let most = libc::rlim_t::from(more) + open as libc::rlim_t;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: takes a valid structure.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(())
}

fn abort_all(nccl: &Nccl, comms: &[Comm]) {
    /// An abort that hangs must not hold up the others.
    const PATIENCE: Duration = Duration::from_secs(10);
    let (done, all_done) = mpsc::channel();
    for comm in comms {
        let (handle, done, abort) = (comm.handle, done.clone(), nccl.api.abort_function());
        thread::spawn(move || {
            let result = abort(handle as CommHandle);
            // Fails if the time limit has passed, as nothing waits any more.
            let _late = done.send(result);
        });
    }
    for _ in comms {
        match all_done.recv_timeout(PATIENCE) {
            Ok(0) => {}
            Ok(code) => crate::say(&format!("ncclCommAbort answered {code}")),
            Err(_) => crate::say("ncclCommAbort does not return"),
        }
    }
}
