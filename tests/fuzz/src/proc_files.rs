//! What is done with `/proc/PID/maps`, `/proc/PID/mountinfo` and `/proc/PID/cgroup`, in which a tenant chooses names and
//! mounts. The first byte says which it is.

use flow::identity::{CgroupHolder, cgroup_names, cgroup_path, hierarchies};
use inspect::process::{maps, mounts};

/// # Panics
/// If it takes too long, says of a device at once that it is safe and that it is not, or finds a container in names that a
/// tenant gave.
pub fn use_file(input: &[u8]) {
    let Some((first, text)) = input.split_first() else { return };
    super::in_time(input.len(), || {
        if *first == b'c' {
            let text = String::from_utf8_lossy(text);
            let _shown = cgroup_path(&text);
            for (_, path) in hierarchies(&text) {
                holders(path);
            }
        } else if first & 1 == 0 {
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

/// Finds the holder of a control group by names that are all, in part, or not root's.
fn holders(path: &str) {
    assert_eq!(CgroupHolder::of_cgroup(path, 0), None);
    let names: Vec<&str> = cgroup_names(path).take(64).collect();
    let mut known = None;
    for by_root in 0..=names.len() {
        let holder = CgroupHolder::of_cgroup(path, by_root);
        // What an outer name says no inner one changes.
        assert!(known.is_none() || holder == known, "{path}");
        if let Some(CgroupHolder::Container(container)) = &holder {
            assert!(container.id.bytes().all(|byte| byte.is_ascii_graphic()), "{container:?}");
            assert!(container.short().len() < 64);
        }
        known = holder;
    }
}
