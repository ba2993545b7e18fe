//! Values of the word that opens and closes a session.

/// Hits are counted as disarmed, and nothing else happens.
pub const CLOSED: u32 = 0;

/// Hits of all processes are recorded.
pub const OPEN: u32 = 1;

/// Only hits of processes that user space has admitted are recorded.
pub const OPEN_TO_ADMITTED: u32 = 2;

/// Processes that can be admitted at a time.
pub const MAX_ADMITTED: u32 = 1024;
