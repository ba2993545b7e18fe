//! What is done with `/proc/PID/maps` and `/proc/PID/mountinfo`, in which a tenant chooses names and mounts. The first
//! byte says which it is.

use inspect::process::{maps, mounts};

/// # Panics
/// If it takes too long, or says of a device at once that it is safe and that it is not.
pub fn use_file(input: &[u8]) {
    let Some((first, text)) = input.split_first() else { return };
    super::in_time(input.len(), || {
        if first & 1 == 0 {
            for mapping in maps::parse(text) {
                let _named = (mapping.is_nccl(), mapping.is_file_code(), mapping.range_name());
            }
        } else {
            let text = String::from_utf8_lossy(text);
            let (safe, others) = mounts::safe_and_others(&text);
            assert!(safe + others <= text.lines().count());
        }
    });
}
