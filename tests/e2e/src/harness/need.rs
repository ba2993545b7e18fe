//! What a test needs from the machine. What is missing is said loudly; what is required fails.

use std::{env, io::Write as _};

/// Whether to go on. Where `available` is false, says so past the test runner's capture, or panics if
/// `$NCCLFLOW_REQUIRE` (a comma list) names the thing.
///
/// # Panics
/// If the thing is required and missing.
pub fn need(thing: &str, available: bool, remedy: &str) -> bool {
    if !available {
        let required = env::var("NCCLFLOW_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|name| name.trim() == thing),
            "a test that must run cannot: it needs {thing}: {remedy}"
        );
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        // Not eprintln!: the test runner swallows that of a test that passes.
        let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: needs {thing}: {remedy}");
    }
    available
}

/// Root, for uprobes and BPF.
pub fn root() -> bool {
    need("root", rustix::process::geteuid().is_root(), "run `sudo -E cargo xtask test`")
}
