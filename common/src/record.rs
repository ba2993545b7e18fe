//! Records: the kernel side sends one for each hit of a probe.

use super::plan::MAX_PROBES;

/// Version of header, plan and counters, raised whenever one of them changes. Both sides carry it; a loader
/// refuses an object with another one.
pub const WIRE_VERSION: u32 = 6;

/// Ring buffers that one session can have. A buffer is one lock, and the ranks of a host launch at the same
/// moments, so processes are spread over several. All records of a process go through the buffer of its
/// [`ring_of`] and so stay in order.
pub const MAX_RINGS: u32 = 8;

/// Returns which of `rings` ring buffers, a power of two, takes the records of a process.
pub const fn ring_of(tgid: u32, rings: u32) -> u32 {
    tgid & (rings - 1)
}

/// Unread bytes at which the kernel side wakes the reader of a ring buffer of this size: a power of two, as
/// the kernel makes the buffer's size one. Below that the reader's timer wakes it: a wake-up per record was
/// measured at 11,600 wake-ups for 20,000 records, and each takes some microseconds from the job.
pub const fn wakeup_bytes(ring_bytes: u64) -> u64 {
    const MOST: u64 = 4 << 20;
    let quarter = ring_bytes.next_power_of_two() / 4;
    if quarter < MOST { quarter } else { MOST }
}

/// Start of every record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RecordHeader {
    /// Bytes of the record that hold data, header included. The bytes behind them in the buffer are
    /// undefined.
    pub len: u16,
    /// Cookie of the probe.
    pub probe: u16,
    /// CPU that the hit was counted on.
    pub cpu: u32,
    /// Number of this hit on this CPU and probe, from 0, while the session is open. A gap is a loss, and
    /// shows where it was. Neighbours can come in exchanged order, as a program can be preempted between
    /// counting and sending.
    pub hit: u64,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub ts_ns: u64,
    /// Process id in the initial PID namespace.
    pub tgid: u32,
    /// Thread id in the initial PID namespace.
    pub tid: u32,
    /// Bit mask of failed reads: bit i is set when step i could not read the target's memory; its bytes are
    /// then zero.
    pub faults: u64,
    /// Records of this process (and of those that share its [`loss_slot`]) that were lost before this one was
    /// made. Where it differs between two records of a process, something between them is missing.
    pub lost: u64,
}

impl RecordHeader {
    /// Bytes of a header.
    pub const SIZE: usize = size_of::<Self>();

    /// Reads the header at the beginning of a record; `None` if the bytes are too few.
    // The drain calls it for each record; without the attribute, code of other crates really calls it.
    #[inline]
    pub fn from_bytes(record: &[u8]) -> Option<Self> {
        let (len, rest) = record.split_first_chunk()?;
        let (probe, rest) = rest.split_first_chunk()?;
        let (cpu, rest) = rest.split_first_chunk()?;
        let (hit, rest) = rest.split_first_chunk()?;
        let (ts_ns, rest) = rest.split_first_chunk()?;
        let (tgid, rest) = rest.split_first_chunk()?;
        let (tid, rest) = rest.split_first_chunk()?;
        let (faults, rest) = rest.split_first_chunk()?;
        let (lost, _) = rest.split_first_chunk()?;
        Some(Self {
            len: u16::from_le_bytes(*len),
            probe: u16::from_le_bytes(*probe),
            cpu: u32::from_le_bytes(*cpu),
            hit: u64::from_le_bytes(*hit),
            ts_ns: u64::from_le_bytes(*ts_ns),
            tgid: u32::from_le_bytes(*tgid),
            tid: u32::from_le_bytes(*tid),
            faults: u64::from_le_bytes(*faults),
            lost: u64::from_le_bytes(*lost),
        })
    }

    /// Returns the header as the kernel side writes it: all fields, little-endian, in their order.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let Self { len, probe, cpu, hit, ts_ns, tgid, tid, faults, lost } = self;
        let mut bytes = [0; Self::SIZE];
        let fields: [&[u8]; 9] = [
            &len.to_le_bytes(),
            &probe.to_le_bytes(),
            &cpu.to_le_bytes(),
            &hit.to_le_bytes(),
            &ts_ns.to_le_bytes(),
            &tgid.to_le_bytes(),
            &tid.to_le_bytes(),
            &faults.to_le_bytes(),
            &lost.to_le_bytes(),
        ];
        let mut rest = bytes.as_mut_slice();
        for field in fields {
            let (place, further) = rest.split_at_mut(field.len());
            place.copy_from_slice(field);
            rest = further;
        }
        bytes
    }
}

/// [`RecordHeader::probe`] of a record that no probe sent: user space inserts it to say that it dropped
/// `lost` records of a process at this place.
pub const LOSS_MARK: u16 = u16::MAX;

/// Number of counters of lost records; each process has one.
pub const LOSS_SLOTS: u32 = 4096;

/// Index of the counter in which the losses of a process are counted.
pub const fn loss_slot(tgid: u32) -> u32 {
    tgid % LOSS_SLOTS
}

/// A size of record. The kernel's verifier wants the size of a reservation to be a constant, so records come
/// in a few sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordClass {
    /// Bytes that are reserved.
    pub size: usize,
}

/// All classes, in ascending order of size.
pub const RECORD_CLASSES: [RecordClass; 3] =
    [RecordClass { size: 384 }, RecordClass { size: 768 }, RecordClass { size: 1280 }];

/// Bytes of the largest record.
pub const LARGEST_RECORD: usize = RECORD_CLASSES[RECORD_CLASSES.len() - 1].size;

/// Records for the perf event array that can be under construction on one CPU at a time: by the task that
/// runs and by those that were preempted meanwhile. A hit that finds no slot is lost, and counted.
pub const SCRATCH_SLOTS: u32 = 8;

const _: () = assert!(size_of::<RecordHeader>() == 48);
const _: () = assert!(MAX_PROBES <= LOSS_MARK as u32, "a mark is no probe's");
