//! Gives the program what `--version` says of its build.

use std::{env, path::Path, process::Command};

fn main() {
    if let Err(problem) = describe_build() {
        println!("cargo::error={problem}");
    }
}

/// What the program is made of, but for what the build script of `trace` watches.
const SOURCES: [&str; 14] = [
    "Cargo.toml",
    "userspace/analysis/src",
    "userspace/cpython/src",
    "userspace/dump/src",
    "userspace/flow/src",
    "userspace/inspect/src",
    "userspace/nccl-library/src",
    "userspace/ncclflow/src",
    "userspace/recording/src",
    "userspace/stacks/src",
    "userspace/torch/src",
    "userspace/torch-history/src",
    "userspace/trace/src",
    "userspace/watch/src",
];

fn describe_build() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=NCCLFLOW_COMMIT");
    let target = env::var("TARGET").map_err(|error| format!("TARGET: {error}"))?;
    let named = env::var("NCCLFLOW_COMMIT").ok().filter(|commit| !commit.is_empty());
    let root = root()?;
    let commit = named.or_else(|| commit(root)).unwrap_or_else(|| "unknown".to_owned());
    // A change of these builds the program again in any case, and can make it another than the commit's.
    for path in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    println!("cargo::rustc-env=NCCLFLOW_BUILD_TARGET={target}");
    println!("cargo::rustc-env=NCCLFLOW_BUILD_COMMIT={commit}");
    Ok(())
}

/// The commit that is checked out, with `-dirty` where the sources differ from it. `None`: this is no clone,
/// or there is no git.
fn commit(root: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        // A tarball that is unpacked in somebody's clone is none of it.
        git.current_dir(root).env("GIT_CEILING_DIRECTORIES", root.parent().unwrap_or(root));
        let output = git.arg("--no-optional-locks").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim_end().to_owned())
    };
    let hash = git(&["rev-parse", "--short=12", "HEAD"])?;
    // Its log grows with each commit and checkout. A file that is not there would run this script in every
    // build.
    for file in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&["rev-parse", "--git-path", file])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let changed = ["status", "--porcelain", "--untracked-files=no", "--", "common", "ebpf"];
    let is_clean = git(&[&changed[..], &SOURCES].concat())?.is_empty();
    Some(if is_clean { hash } else { format!("{hash}-dirty") })
}

fn root() -> Result<&'static Path, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.ancestors().nth(2).ok_or_else(|| "the crate has no folders above it".to_owned())
}
