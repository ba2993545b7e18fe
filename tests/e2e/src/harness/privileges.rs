//! Programs that run as nobody, with chosen capabilities.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use test_support::need;

/// Nobody, by Debian's count.
pub const NOBODY: u32 = 65534;

/// Whether there is the program that this takes; if not, skips.
pub fn has_setpriv() -> bool {
    let found = Command::new("setpriv").arg("--version").stdout(Stdio::null()).status();
    need("setpriv", found.is_ok_and(|status| status.success()), "install util-linux")
}

/// Runs a program as nobody, with these capabilities and no way to more.
pub fn with_capabilities(capabilities: &str, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
    command.args(["--clear-groups", "--no-new-privs"]);
    command.args(["inh-caps", "ambient-caps", "bounding-set"].map(|set| format!("--{set}={capabilities}")));
    command.arg(program).stdin(Stdio::null());
    command
}
