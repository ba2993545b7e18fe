//! Errors of GPUs (Xids) in the kernel's log, which is read and not changed.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::process::printable;

/// Maximum number of bytes read from the end of the log; kernels keep 128 KiB to some MiB.
const MAX_LOG: usize = 1 << 20;
/// Maximum number of errors that are kept, the latest ones.
const MAX_XIDS: usize = 256;

/// An error that the driver wrote to the kernel's log: `NVRM: Xid (PCI:0000:3b:00): 79, pid=…`.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelXid {
    /// NVIDIA's number of the kind of error.
    pub xid: u32,
    /// PCI address without the function: `0000:3b:00`.
    pub device: String,
    /// The process that the driver blames, if it says one.
    pub pid: Option<u32>,
    /// Seconds since the system was started.
    pub uptime: f64,
    /// The driver's sentence behind the number.
    pub text: String,
}

/// Returns the errors in the kernel's log, the oldest first.
///
/// # Errors
/// A sentence where the log may not be read: a setting of the kernel (`kernel.dmesg_restrict`) says who may.
pub fn kernel_xids() -> Result<Vec<KernelXid>, String> {
    /// `SYSLOG_ACTION_READ_ALL` (include/linux/syslog.h): returns the last bytes of the log and leaves it as
    /// it is.
    const READ_ALL: libc::c_int = 3;
    // The buffer's size, kept from call to call: a reading each second must not allocate a megabyte each.
    static LENGTH: AtomicUsize = AtomicUsize::new(64 << 10);
    loop {
        let size = LENGTH.load(Ordering::Relaxed);
        let mut log = vec![0u8; size];
        let length = libc::c_int::try_from(size).unwrap_or(libc::c_int::MAX);
        // SAFETY: the kernel writes at most `length` bytes into the buffer.
        let read = unsafe { libc::klogctl(READ_ALL, log.as_mut_ptr().cast(), length) };
        let Ok(read) = usize::try_from(read) else {
            return Err(format!("the kernel's log cannot be read: {}", std::io::Error::last_os_error()));
        };
        if read + 4096 < size || size >= MAX_LOG {
            log.truncate(read);
            return Ok(xids_in(&String::from_utf8_lossy(&log)));
        }
        LENGTH.store((2 * size).min(MAX_LOG), Ordering::Relaxed);
    }
}

fn xids_in(log: &str) -> Vec<KernelXid> {
    let mut found: Vec<KernelXid> = log.lines().rev().filter_map(xid_in).take(MAX_XIDS).collect();
    found.reverse();
    found
}

/// Parses a line of the log:
/// `<4>[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.`
fn xid_in(line: &str) -> Option<KernelXid> {
    // Anybody who may write to /dev/kmsg can write such a line, but not one that begins like the driver's:
    // the kernel puts the time and its own level in front.
    let (_, rest) = line.split_once('[')?;
    let (uptime, rest) = rest.split_once(']')?;
    // With CONFIG_PRINTK_CALLER, as SUSE's kernels have it, the thread or the processor follows: `[ T815]`.
    let rest = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(rest, |(_, rest)| rest);
    let rest = rest.strip_prefix(' ')?;
    let rest = rest.strip_prefix("NVRM: Xid (PCI:")?;
    let (device, rest) = rest.split_once("): ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (xid, text) = rest.split_at_checked(digits)?;
    let text = text.trim_start_matches(", ");
    let pid = text.split_once("pid=").and_then(|(_, pid)| {
        let end = pid.bytes().take_while(u8::is_ascii_digit).count();
        pid.get(..end)?.parse().ok()
    });
    Some(KernelXid {
        xid: xid.parse().ok()?,
        device: device.to_lowercase(),
        pid,
        uptime: uptime.trim().parse().ok()?,
        text: printable(text).chars().take(200).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as in NVIDIA's documentation of Xids.
    const LOG: &str = "\
<6>[    0.000000] Linux version 6.8.0
<3>[14987.120415] NVRM: Xid (PCI:0000:3B:00): 31, pid=5150, name=python3, Ch 00000008, intr 00000000. MMU Fault
<4>[15001.5] NVRM: GPU at PCI:0000:3b:00: GPU-3f0e3e0c
<3>[15002.000001] NVRM: Xid (PCI:0000:d8:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
<3>[15002.500000][ T815] NVRM: Xid (PCI:0000:d9:00): 48, pid=7, name=python3, DBE
<3>[15003.0] NVRM: Xid (PCI:0000:d8:00): 999999999999999, none
<3>[x] NVRM: Xid (PCI:0000:d8:00): 13, none
a line by a program: NVRM: Xid (PCI:0000:d8:00): 13
";

    #[test]
    fn errors_are_told_by_number_device_and_process() {
        let found = xids_in(LOG);
        let [fault, fallen, caller] = &*found else { panic!("{found:?}") };
        assert_eq!((fault.xid, &*fault.device, fault.pid), (31, "0000:3b:00", Some(5150)));
        assert!((fault.uptime - 14_987.120_415).abs() < 1e-6);
        assert_eq!((fallen.xid, &*fallen.device, fallen.pid), (79, "0000:d8:00", None));
        assert_eq!((caller.xid, &*caller.device, caller.pid), (48, "0000:d9:00", Some(7)));
        assert!(fallen.text.ends_with("GPU has fallen off the bus."), "{}", fallen.text);
    }

    #[test]
    fn a_log_full_of_errors_gives_the_latest_ones() {
        let log: String = (0..1000)
            .flat_map(|second| {
                [
                    "<3>[".to_owned(),
                    second.to_string(),
                    ".0] NVRM: Xid (PCI:0000:3b:00): 13, pid=1\n".to_owned(),
                ]
            })
            .collect();
        let found = xids_in(&log);
        assert_eq!(found.len(), MAX_XIDS);
        assert!((found.last().unwrap().uptime - 999.0).abs() < f64::EPSILON);
    }
}
