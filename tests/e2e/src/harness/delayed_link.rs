//! A cable that takes its time: two TAP interfaces, and a thread that carries frames from one to the other. (The
//! kernels of test machines have no netem.)

use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    io::{ErrorKind, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::OpenOptionsExt as _,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
    io::Errno,
};

/// Bytes of the longest frame.
const FRAME: usize = 1 << 16;
/// Frames that are under way at most; more are lost, as in a switch.
const MOST_FRAMES: usize = 10_000;
/// Time after which a carrier looks whether it shall end.
const LOOKS: Duration = Duration::from_millis(100);

/// Two interfaces, as the ends of a cable. They are gone when this is dropped.
#[derive(Debug)]
pub struct DelayedLink {
    delay_ns: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    carriers: Vec<JoinHandle<()>>,
}

impl DelayedLink {
    /// Makes the interfaces, in the network namespace of this thread. What goes out through `near` can be delayed.
    pub fn start(near: &str, far: &str) -> Result<Self> {
        let (near, far) = (Arc::new(tap(near)?), Arc::new(tap(far)?));
        let (delay_ns, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let carry = |from: &Arc<File>, to: &Arc<File>, delay_ns: Arc<AtomicU64>| {
            let (from, to, ends) = (Arc::clone(from), Arc::clone(to), Arc::clone(&ends));
            thread::spawn(move || carry(&from, &to, &delay_ns, &ends))
        };
        let carriers =
            vec![carry(&near, &far, Arc::clone(&delay_ns)), carry(&far, &near, Arc::new(AtomicU64::new(0)))];
        Ok(Self { delay_ns, ends, carriers })
    }

    /// Delays the frames that go out from now on.
    pub fn delay(&self, by: Duration) {
        self.delay_ns.store(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Drop for DelayedLink {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for carrier in self.carriers.drain(..) {
            let _ = carrier.join();
        }
    }
}

/// Makes a TAP interface, which is there until the file is closed.
fn tap(name: &str) -> Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).context("O_NONBLOCK")?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open("/dev/net/tun")
        .context("opening /dev/net/tun")?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: libc::c_short::try_from(libc::IFF_TAP | libc::IFF_NO_PI).context("flags of a TAP")?,
        },
    };
    if name.len() >= libc::IFNAMSIZ {
        bail!("the interface's name `{name}` is too long");
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives until the call is over.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } != 0 {
        return Err(std::io::Error::last_os_error())
            .with_context(|| format!("making the interface `{name}`"));
    }
    Ok(file)
}

/// Carries frames from one interface to another, in their order, each after the delay of the moment when it came.
fn carry(mut from: &File, mut to: &File, delay_ns: &AtomicU64, ends: &AtomicBool) {
    let mut under_way: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut frame = vec![0; FRAME];
    while !ends.load(Ordering::Relaxed) {
        while let Some((due, frame)) = under_way.front()
            && *due <= Instant::now()
        {
            // An interface that is down or full loses frames, as any.
            let _ = to.write(frame);
            under_way.pop_front();
        }
        let next = under_way.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
        let wait = next.unwrap_or(LOOKS).min(LOOKS);
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(from.as_fd(), PollFlags::IN)], Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        match from.read(&mut frame) {
            Ok(bytes) if under_way.len() < MOST_FRAMES => {
                let due = Instant::now() + Duration::from_nanos(delay_ns.load(Ordering::Relaxed));
                under_way.push_back((due, frame[..bytes].to_vec()));
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // An interface that is down cannot be read.
            Err(_) => thread::sleep(LOOKS),
        }
    }
}
