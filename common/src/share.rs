//! Shares of a ring buffer: a tenant that floods the buffer loses its own records and not those of others.
//!
//! A buffer that is at most half full takes every record. Above that, each tenant may put a share of the
//! other half into it until it has been read down again. User space says which tenant a process belongs to,
//! and how large a share is.

/// Account of a tenant with a ring buffer since that was more than half full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ShareTaken {
    /// Time at which the buffer became more than half full, by `CLOCK_MONOTONIC`. Counts of an earlier such
    /// time are void.
    pub since_ns: u64,
    pub bytes: u64,
    /// Reservations, of a record or of a pack, that were ever refused.
    pub refused: u64,
}

/// Accounts that are kept: one for each tenant and ring buffer.
pub const MAX_SHARERS: u32 = 1024;

/// Processes whose tenant is kept; any other process counts as a tenant of its own.
pub const MAX_TENANT_PROCESSES: u32 = 4096;

/// Tenant of a process that user space has named none for. User space gives smaller numbers.
pub const fn own_tenant(tgid: u32) -> u32 {
    tgid | 1 << 31
}

/// Key of a tenant's account with a ring buffer.
pub const fn share_key(tenant: u32, ring: u32) -> u64 {
    (ring as u64) << 32 | tenant as u64
}

/// Bytes of a ring buffer of this size, rounded up to a power of two, that are open to every tenant.
pub const fn common_bytes(ring_bytes: u64) -> u64 {
    ring_bytes.next_power_of_two() / 2
}
