//! Division of a send or receive into parts, one for each channel.

/// Returns the payload bytes of one channel's part of a p2p call: `ncclP2pPartBounds` (2.22 and later,
/// src/include/device.h).
pub fn p2p_part_bytes(bytes: u64, parts: u64, part: u64) -> Option<u64> {
    if parts == 0 || part >= parts {
        return None;
    }
    let part_bytes = bytes.div_ceil(parts).checked_next_multiple_of(4096)?;
    let begin = part.checked_mul(part_bytes)?.min(bytes);
    let end = (part + 1).checked_mul(part_bytes)?.min(bytes);
    Some(end - begin)
}

#[cfg(test)]
mod tests {
    use super::p2p_part_bytes;

    #[test]
    fn p2p_parts_are_whole_pages_and_the_last_is_what_is_left() {
        assert_eq!(p2p_part_bytes(10_000, 2, 0), Some(8192));
        assert_eq!(p2p_part_bytes(10_000, 2, 1), Some(1808));
        assert_eq!(p2p_part_bytes(0, 1, 0), Some(0));
        assert_eq!(p2p_part_bytes(10, 2, 2), None);
        let total: u64 = (0..7).filter_map(|part| p2p_part_bytes(1_234_567, 7, part)).sum();
        assert_eq!(total, 1_234_567);
    }
}
