//! One process of a tenant: it loads NCCL and calls it, and does what processes do. This program is started again for it.
//!
//! It calls `ncclAllReduce` without a communicator. NCCL refuses that in `ncclEnqueueCheck`, where a probe is, and needs
//! neither a GPU nor a driver for it.

use std::{
    ffi::{CStr, CString, c_int, c_void},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    ptr, thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use super::ledger::{Ledger, Slot};

/// First argument of such a process.
pub(crate) const ROLE: &str = "__tenant";

/// `ncclInvalidArgument`
const REFUSED: c_int = 4;

type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;

/// What it does besides calling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trick {
    Plain,
    /// A child goes on that has the library from its parent.
    Fork,
    /// It becomes another program, which loads the library anew.
    Exec,
    Threads,
    /// In PID, mount and network namespaces of its own.
    Namespaces,
    /// It unloads the library and loads it again.
    Reload,
    /// It maps the file and calls nothing: files that are no library.
    Map,
}

const TRICKS: [(Trick, &str); 7] = [
    (Trick::Plain, "plain"),
    (Trick::Fork, "fork"),
    (Trick::Exec, "exec"),
    (Trick::Threads, "threads"),
    (Trick::Namespaces, "namespaces"),
    (Trick::Reload, "reload"),
    (Trick::Map, "map"),
];

impl Trick {
    /// Those that a tenant does with a library that works.
    pub(crate) const CALLING: [Self; 6] =
        [Self::Plain, Self::Fork, Self::Exec, Self::Threads, Self::Namespaces, Self::Reload];

    pub(crate) fn name(self) -> &'static str {
        TRICKS.iter().find(|(trick, _)| *trick == self).map_or("plain", |(_, name)| *name)
    }
}

/// How one is started.
#[derive(Clone, Debug)]
pub(crate) struct Order<'a> {
    pub(crate) trick: Trick,
    pub(crate) library: &'a Path,
    /// `None`: its calls are not counted, as its library is not always probed.
    pub(crate) ledger: Option<&'a Ledger>,
    pub(crate) calls: u64,
    pub(crate) hold: Duration,
}

impl Order<'_> {
    pub(crate) fn command(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([ROLE, self.trick.name()]).arg(self.library);
        command.arg(self.ledger.map_or(Path::new(""), Ledger::path));
        command.args([self.calls.to_string(), self.hold.as_millis().to_string()]);
        Ok(command)
    }
}

/// A loaded library.
struct Nccl {
    handle: *mut c_void,
    all_reduce: AllReduce,
}

impl Nccl {
    fn load(path: &Path) -> Result<Self> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())?;
        // SAFETY: a string that ends with 0. The library's constructors are NCCL's.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: it is a string until the next call of the loader.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            bail!("{}", why.to_string_lossy());
        }
        // SAFETY: the handle is open.
        let found = unsafe { libc::dlsym(handle, c"ncclAllReduce".as_ptr()) };
        if found.is_null() {
            bail!("it has no ncclAllReduce");
        }
        // SAFETY: the function's type, as nccl.h has it.
        let all_reduce = unsafe { std::mem::transmute::<*mut c_void, AllReduce>(found) };
        Ok(Self { handle, all_reduce })
    }

    fn call(&self, ledger: Option<&Ledger>, calls: u64) {
        for call in 0..calls {
            if let Some(ledger) = ledger {
                ledger.add(Slot::Begun, 1);
            }
            // SAFETY: NCCL refuses it before it looks at any of these.
            let result = unsafe {
                (self.all_reduce)(ptr::null(), ptr::null_mut(), 1, 7, 0, ptr::null_mut(), ptr::null_mut())
            };
            if let Some(ledger) = ledger {
                ledger.add(Slot::Ended, 1);
                ledger.add(Slot::Wrong, u64::from(result != REFUSED));
            } else if result != REFUSED {
                std::process::exit(3);
            }
            if call % 16 == 15 {
                thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn unload(self) {
        // SAFETY: nothing of it is used any more.
        unsafe { libc::dlclose(self.handle) };
    }
}

// SAFETY: calls without a communicator share nothing.
unsafe impl Sync for Nccl {}

/// The process.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    let [trick, library, ledger, calls, hold] = arguments else { bail!("a tenant has five arguments") };
    let trick = TRICKS.iter().find(|(_, name)| name == trick).context("no such trick")?.0;
    let (library, ledger) = (PathBuf::from(library), PathBuf::from(ledger));
    let ledger = if ledger.as_os_str().is_empty() { None } else { Some(Ledger::open(&ledger)?) };
    let (calls, hold): (u64, _) = (calls.parse()?, Duration::from_millis(hold.parse()?));
    die_with_parent();
    if trick == Trick::Map {
        return map(&library, hold);
    }
    if trick == Trick::Namespaces {
        return in_namespaces(&library, ledger.as_ref(), calls, hold);
    }
    work(trick, &library, ledger.as_ref(), calls, hold)
}

fn work(
    trick: Trick,
    library: &Path,
    ledger: Option<&Ledger>,
    calls: u64,
    hold: Duration,
) -> Result<ExitCode> {
    let nccl = Nccl::load(library)?;
    if let Some(ledger) = ledger {
        ledger.add(Slot::Callers, 1);
    }
    match trick {
        Trick::Threads => thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| nccl.call(ledger, calls));
            }
        }),
        Trick::Fork => {
            // SAFETY: this process has one thread.
            let child = unsafe { libc::fork() };
            if child == 0 {
                die_with_parent();
                nccl.call(ledger, calls);
                // SAFETY: ends the child, without what is the parent's.
                unsafe { libc::_exit(0) };
            }
            nccl.call(ledger, calls);
            wait_for(child)?;
        }
        Trick::Exec => {
            nccl.call(ledger, calls);
            let order = Order { trick: Trick::Plain, library, ledger, calls, hold };
            return Err(order.command()?.exec().into());
        }
        Trick::Reload => {
            nccl.call(ledger, calls);
            nccl.unload();
            let again = Nccl::load(library)?;
            again.call(ledger, calls);
        }
        _ => nccl.call(ledger, calls),
    }
    thread::sleep(hold);
    Ok(ExitCode::SUCCESS)
}

/// Namespaces as a container has them. A PID namespace is entered by children.
fn in_namespaces(library: &Path, ledger: Option<&Ledger>, calls: u64, hold: Duration) -> Result<ExitCode> {
    // SAFETY: changes this process only.
    if unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWPID) } != 0 {
        return Err(std::io::Error::last_os_error()).context("making namespaces");
    }
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        die_with_parent();
        let done = work(Trick::Plain, library, ledger, calls, hold);
        // SAFETY: ends the child, without what is the parent's.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    wait_for(child)?;
    Ok(ExitCode::SUCCESS)
}

fn wait_for(child: libc::pid_t) -> Result<()> {
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    if unsafe { libc::waitpid(child, &raw mut status, 0) } != child || status != 0 {
        bail!("the child ended with {status:#x}");
    }
    Ok(())
}

/// Maps the first page as code, as far as there is one.
fn map(file: &Path, hold: Duration) -> Result<ExitCode> {
    use std::os::fd::AsRawFd as _;
    let file = std::fs::File::open(file)?;
    // SAFETY: a new mapping, which nothing looks into.
    unsafe {
        libc::mmap(
            ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    thread::sleep(hold);
    Ok(ExitCode::SUCCESS)
}

fn die_with_parent() {
    // SAFETY: concerns this process only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}
