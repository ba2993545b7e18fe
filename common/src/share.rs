//! Shares of a ring buffer, so that a tenant that floods it loses its own records and not those of others.
//!
//! A buffer that is at most half full takes whatever comes. Above that, each tenant may put a share of the other half
//! into it until it has been read down again. User space says which tenant a process is of, and how large a share is.

/// What a tenant has put into a ring buffer since that was more than half full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ShareTaken {
    /// When the buffer became so full, by `CLOCK_MONOTONIC`; of an earlier time nothing counts.
    pub since_ns: u64,
    pub bytes: u64,
    /// Reservations that were refused, of all times: a record, or a pack of them.
    pub refused: u64,
}

/// Tenants of which it is known what they have taken, each once for each ring buffer.
pub const MAX_SHARERS: u32 = 1024;

/// Processes of which it is known which tenant they are of; others are each its own.
pub const MAX_TENANT_PROCESSES: u32 = 4096;

/// The tenant of a process of which user space has not said it. User space gives smaller numbers.
pub const fn own_tenant(tgid: u32) -> u32 {
    tgid | 1 << 31
}

/// The account of a tenant with a ring buffer.
pub const fn share_key(tenant: u32, ring: u32) -> u64 {
    (ring as u64) << 32 | tenant as u64
}

/// The part of a ring buffer of this size, a power of two, that takes whatever comes.
pub const fn common_bytes(ring_bytes: u64) -> u64 {
    ring_bytes.next_power_of_two() / 2
}
