//! Wheels that NVIDIA has published, as pip's index lists them, with those that were published again under
//! one version (`.post1`).

/// Versions for CUDA 12 and x86-64; older ones are not supported.
const CUDA_12: &str = "2.16.2 2.16.5 2.17.1 2.18.1 2.18.3 2.19.3 2.20.5 2.21.5 2.22.3 2.23.4 2.24.3 2.25.1 2.25.1.post1 2.26.2 \
                       2.26.2.post1 2.26.5 2.27.3 2.27.5 2.27.6 2.27.7 2.28.3 2.28.7 2.28.9 2.29.2 2.29.3 2.29.7 2.30.3 \
                       2.30.4 2.30.7 2.31.2 2.32.3";
/// Versions for CUDA 13, and both processors.
const CUDA_13: &str = "2.27.7 2.28.3 2.28.7 2.28.9 2.29.2 2.29.3 2.29.7 2.30.3 2.30.4 2.30.7 2.31.2 2.32.3";
/// Versions for CUDA 11 and x86-64.
const CUDA_11: &str = "2.16.2 2.16.5 2.18.3 2.19.3 2.20.5 2.21.5";
/// Versions for CUDA 12 and aarch64.
const CUDA_12_ARM: &str = "2.20.3 2.20.5 2.23.4 2.24.3 2.25.1 2.25.1.post1 2.26.2 2.26.2.post1 2.26.5 2.27.3 2.27.5 2.27.6 2.27.7 \
     2.28.3 2.28.7 2.28.9 2.29.2 2.29.3 2.29.7 2.30.3 2.30.4 2.30.7 2.31.2 2.32.3";

/// Versions for tests of all eras: one for each set of structs that ncclflow reads. One of them is built for
/// CUDA 13.
pub(crate) const ERAS: [&str; 6] =
    ["2.17.1-cu12", "2.21.5-cu12", "2.24.3-cu12", "2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"];

/// Returns all wheels, in the form that `cargo xtask nccl fetch` takes.
pub(crate) fn all() -> Vec<String> {
    let named = |list: &str, suffix: &str| -> Vec<String> {
        list.split_whitespace().map(|version| format!("{version}-{suffix}")).collect()
    };
    [
        named(CUDA_12, "cu12"),
        named(CUDA_13, "cu13"),
        named(CUDA_11, "cu11"),
        named(CUDA_12_ARM, "cu12-aarch64"),
        named(CUDA_13, "cu13-aarch64"),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::{ERAS, all};
    use crate::nccl::Version;

    #[test]
    fn each_can_be_asked_for() {
        let all = all();
        assert_eq!(all.len(), 31 + 12 + 6 + 24 + 12);
        for name in &all {
            assert_eq!(Version::parse(name).unwrap().name(), *name);
        }
        assert!(ERAS.iter().all(|era| all.contains(&(*era).to_owned())));
    }
}
