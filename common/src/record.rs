//! The record: what the kernel side sends for one hit of one probe.

/// Raised whenever header, plan or counters change. Both sides carry it; a loader refuses an object with another one.
pub const WIRE_VERSION: u32 = 2;

/// Unread bytes in the ring buffer at which the kernel side wakes the reader. Below it the reader's timer does:
/// a wake-up per record was measured at 11,600 wake-ups for 20,000 records.
pub const WAKEUP_BYTES: u64 = 256 * 1024;

/// Start of every record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RecordHeader {
    /// Bytes of the record that hold data, header included. What follows in the buffer is undefined.
    pub len: u16,
    /// Cookie of the probe.
    pub probe: u16,
    /// CPU that the hit was counted on.
    pub cpu: u32,
    /// Number of this hit on this CPU and probe, from 0. A gap is a loss, and shows where it was.
    pub hit: u64,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub ts_ns: u64,
    /// Process id in the initial PID namespace.
    pub tgid: u32,
    /// Thread id in the initial PID namespace.
    pub tid: u32,
    /// Bit i is set when step i could not read the target's memory; its bytes are then zero.
    pub faults: u64,
}

/// The kernel's verifier wants the size of a reservation to be a constant, so records come in a few sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordClass {
    /// Bytes that are reserved.
    pub size: usize,
}

/// In ascending order of size.
pub const RECORD_CLASSES: [RecordClass; 3] =
    [RecordClass { size: 384 }, RecordClass { size: 768 }, RecordClass { size: 1280 }];

const _: () = assert!(size_of::<RecordHeader>() == 40);
