//! Programs of others that read what ncclflow writes. `cargo xtask test` installs or fetches them.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::skip::need;

/// Whether a browser without a display runs; if not, skips.
///
/// # Panics
/// As [`crate::skip`] does.
#[must_use]
pub fn has_browser() -> bool {
    let is_there = |browser: &str| {
        let found =
            Command::new(browser).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    let found = ["chromium-headless-shell", "chromium", "google-chrome"].into_iter().any(is_there);
    need("chromium", found, "run `cargo xtask test`, which installs it, or install chromium")
}

/// Folder of torch's analyser of flight recorder files; if it is not there, skips.
///
/// # Panics
/// As [`crate::skip`] does.
#[must_use]
pub fn torch_analyser() -> Option<PathBuf> {
    let folder = env::var_os("NCCLFLOW_TORCH_ANALYSER").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/torch-analyser"),
        PathBuf::from,
    );
    let is_there = folder.join("torch/distributed/flight_recorder/fr_trace.py").exists();
    need("torch's analyser", is_there, "run `cargo xtask test`, which fetches it").then_some(folder)
}

/// Folder of the files of other projects that `dist/integrations` hooks into; if it is not there, or Python is
/// too old for them, skips.
///
/// # Panics
/// As [`crate::skip`] does.
#[must_use]
pub fn hooks() -> Option<PathBuf> {
    let folder = env::var_os("NCCLFLOW_HOOKS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/hooks"), PathBuf::from);
    let is_there = folder.join("torch/distributed/run.py").exists();
    if !need("other projects' watchdogs", is_there, "run `cargo xtask test`, which fetches them") {
        return None;
    }
    let is_new = Command::new("python3").args(["-c", "import tomllib"]).stderr(Stdio::null()).status();
    let is_new = is_new.is_ok_and(|status| status.success());
    need("python3 3.11", is_new, "install a newer Python").then_some(folder)
}
