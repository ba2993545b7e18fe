//! Restrictions of the children. They restrict themselves before they read anything foreign.
//!
//! Where the kernel lacks a part (Landlock before 5.13, a seccomp that is compiled out), the others hold. A
//! system call that is not listed fails with EPERM.

use std::{collections::BTreeMap, io, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, Scope,
    path_beneath_rules,
};
use rustix::{
    process::{
        DumpableBehavior, Resource, Rlimit, Signal, set_dumpable_behavior, set_parent_process_death_signal,
        setrlimit,
    },
    thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs},
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::page_map::PAGEMAP_SCAN;

/// Bytes of address space of the opener, and of the child that copies memory.
const OPENER_SPACE: u64 = 1 << 30;
/// Bytes of address space of the reader. The largest official libraries make it need a tenth of that.
const READER_SPACE: u64 = 1 << 30;
/// Seconds of processor time of one reader.
const READER_SECONDS: u64 = 60;
/// Most descriptors that a child may have open.
const DESCRIPTORS: u64 = 256;

/// The kinds of children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Reads `/proc/PID` and opens files.
    Opener,
    /// Copies memory of processes.
    MemoryCopier,
    /// Holds a performance event that follows itself.
    EventHolder,
}

/// Gives up what no child needs, and what a child of this role does not. Its descriptors are 0 (the socket),
/// 1 and 2.
pub(super) fn enter(role: Role) -> Result<()> {
    // The page size is read once, from a file that is out of reach later, and then kept.
    let _ = rustix::param::page_size();
    // SAFETY: closes descriptors that nothing of this process refers to: it has opened none.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    set_parent_process_death_signal(Some(Signal::KILL)).context("PR_SET_PDEATHSIG")?;
    set_no_new_privs(true).context("PR_SET_NO_NEW_PRIVS")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("PR_SET_DUMPABLE")?;
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, DESCRIPTORS)?;
    limit(Resource::As, OPENER_SPACE)?;
    // The note of the file that the opener is at has some bytes.
    limit(Resource::Fsize, if role == Role::Opener { 4096 } else { 0 })?;
    keep_capabilities(match role {
        Role::Opener => {
            let reading = CapabilitySet::SYS_PTRACE
                | CapabilitySet::DAC_READ_SEARCH
                | CapabilitySet::CHECKPOINT_RESTORE;
            let has = capabilities(None).context("capget")?.permitted;
            // Without CAP_CHECKPOINT_RESTORE (Linux 5.9), CAP_SYS_ADMIN opens /proc/PID/map_files.
            if has.contains(CapabilitySet::CHECKPOINT_RESTORE) {
                reading
            } else {
                reading | CapabilitySet::SYS_ADMIN
            }
        }
        Role::MemoryCopier => CapabilitySet::SYS_PTRACE,
        // These are needed where `kernel.perf_event_paranoid` is above 2, as on Debian and Ubuntu.
        Role::EventHolder => CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN,
    })?;
    match role {
        Role::Opener => restrict_calls(&[COMMON, READING, LOOKING, LIMITING].concat(), opening()?),
        Role::MemoryCopier => {
            restrict_calls(&[COMMON, &[libc::SYS_process_vm_readv]].concat(), listing_pages()?)
        }
        Role::EventHolder => {
            restrict_calls(&[COMMON, &[libc::SYS_perf_event_open]].concat(), Conditional::new())
        }
    }
}

/// Gives up all that parsing open files does not need. Only files at these places may be opened and read.
pub(super) fn enter_reader<'p>(debug_files: impl Iterator<Item = &'p Path>) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("PR_SET_PDEATHSIG")?;
    keep_capabilities(CapabilitySet::empty())?;
    limit(Resource::As, READER_SPACE)?;
    limit(Resource::Cpu, READER_SECONDS)?;
    limit(Resource::Fsize, 0)?;
    let all = ABI::V6;
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(all))?;
    let ruleset = ruleset.handle_access(AccessNet::from_all(all))?.scope(Scope::from_all(all))?.create()?;
    let readable = AccessFs::ReadFile | AccessFs::ReadDir;
    ruleset.add_rules(path_beneath_rules(debug_files, readable))?.restrict_self()?;
    restrict_calls(&[COMMON, READING].concat(), opening()?)
}

/// Ends the process after this time, whatever it does, unless it sleeps in the kernel out of reach.
pub(super) fn alarm(after: Duration) {
    let seconds = u32::try_from(after.as_secs()).unwrap_or(u32::MAX);
    // SAFETY: sets a timer of this process; its signal ends it.
    unsafe { libc::alarm(seconds) };
}

fn limit(resource: Resource, to: u64) -> Result<()> {
    let limit = Rlimit { current: Some(to), maximum: Some(to) };
    match setrlimit(resource, limit) {
        // The limit is lower already.
        Err(rustix::io::Errno::PERM | rustix::io::Errno::INVAL) => Ok(()),
        done => done.with_context(|| format!("limiting {resource:?}")),
    }
}

fn keep_capabilities(kept: CapabilitySet) -> Result<()> {
    let has = capabilities(None).context("capget")?.permitted;
    let kept = has & kept;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("capset")
}

/// System calls that are allowed with some arguments.
type Conditional = Vec<(i64, Vec<SeccompRule>)>;

/// Allows `openat` for reading only: no access mode but O_RDONLY, and no flag that makes or cuts a file.
fn opening() -> Result<Conditional> {
    // Not O_ACCMODE: musl's includes O_PATH.
    let writing = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND;
    let for_reading = |argument| -> Result<Vec<SeccompRule>> {
        let operator = SeccompCmpOp::MaskedEq(u64::from(writing.cast_unsigned()));
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, 0)?;
        Ok(vec![SeccompRule::new(vec![condition])?])
    };
    Ok(vec![
        (libc::SYS_openat, for_reading(2)?),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, for_reading(1)?),
    ])
}

/// Allows the `ioctl` that lists the filled pages of a process, and no other.
fn listing_pages() -> Result<Conditional> {
    let request = u64::from(PAGEMAP_SCAN);
    let condition = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request)?;
    Ok(vec![(libc::SYS_ioctl, vec![SeccompRule::new(vec![condition])?])])
}

fn restrict_calls(calls: &[i64], conditional: Conditional) -> Result<()> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.iter().map(|call| (*call, Vec::new())).collect();
    rules.extend(conditional);
    let denied = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into()?;
    let filter: BpfProgram = SeccompFilter::new(rules, denied, SeccompAction::Allow, arch)?.try_into()?;
    match seccompiler::apply_filter(&filter) {
        Ok(()) => Ok(()),
        // The kernel has no seccomp.
        Err(seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error))
            if error.kind() == io::ErrorKind::InvalidInput =>
        {
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// System calls of the standard library and the allocator, and of messages.
const COMMON: &[i64] = &[
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_fcntl,
    libc::SYS_ppoll,
    libc::SYS_setsockopt,
    libc::SYS_geteuid,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    // musl aborts with it.
    libc::SYS_tkill,
    libc::SYS_setitimer,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_alarm,
];

/// System calls for reading files and folders.
const READING: &[i64] = &[
    libc::SYS_lseek,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

/// System calls for looking at processes.
const LOOKING: &[i64] = &[
    libc::SYS_openat2,
    libc::SYS_pidfd_open,
    libc::SYS_memfd_create,
    libc::SYS_socketpair,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_dup3,
    libc::SYS_close_range,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    libc::SYS_wait4,
    libc::SYS_kill,
    libc::SYS_set_robust_list,
    // musl makes it after a fork.
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_getppid,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
];

/// System calls with which the opener's child, the reader, restricts itself.
const LIMITING: &[i64] = &[
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_prlimit64,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
];
