//! Versions of CPython that tests read: those of the machine, and others that are fetched or built where
//! these are too few.

use std::{
    env,
    ffi::OsString,
    fs,
    path::Path,
    process::{Command, Stdio},
    thread::available_parallelism,
};

use anyhow::{Context as _, Result};

use crate::{
    prerequisites::{do_or_fail, download, install_wheel},
    programs,
    tool::say,
};

/// Versions that are fetched where fewer than two interpreters are installed: one whose layouts are in our
/// table, one that states them, and two without the GIL, in the second of which threads run their own copies
/// of the bytecode.
const FETCHED: [&str; 4] = ["3.10", "3.13t", "3.14", "3.14t"];

/// Source of the CPython that is built where no interpreter without the GIL is installed: as Ubuntu 26.04 has
/// it.
const SOURCE: &str = "http://archive.ubuntu.com/ubuntu/pool/main/p/python3.14/python3.14_3.14.4.orig.tar.xz";
const SOURCE_SHA256: &str = "d923c51303e38e249136fc1bdf3568d56ecb03214efdef48516176d3d7faaef8";
const SOURCE_FOLDER: &str = "Python-3.14.4";
/// Folder that it is put into.
const BUILT: &str = "3.14.4t";

/// Returns `$NCCLFLOW_PYTHONS` with which tests find at least two versions of CPython, one of them without
/// the GIL. Where the machine has fewer, uv fetches some into a folder of ours; where none of them is without
/// the GIL, one is built. A failure is printed, and tests are skipped or fail.
pub(crate) fn pythons() -> Result<OsString> {
    let given = env::var_os("NCCLFLOW_PYTHONS").filter(|list| !list.is_empty());
    let folder = programs::target_folder()?.join("pythons");
    let fetched = || {
        let versions = fs::read_dir(&folder).into_iter().flatten().flatten();
        versions.map(|version| version.path().join("bin/python3")).filter(|program| program.exists())
    };
    let installed = test_support::pythons();
    if installed.len() + fetched().count() < 2 {
        say(&format!("fetching CPython {} into {}", FETCHED.join(", "), folder.display()));
        if let Err(error) = fetch(&folder) {
            say(&format!("{error:#}: tests that need two versions of CPython are skipped"));
        }
    }
    let of_ours = fetched().filter_map(|program| test_support::interpreter(&program));
    if !installed.into_iter().chain(of_ours).any(|python| python.free_threaded) {
        say(&format!("building CPython 3.14 without the GIL in {} (a minute or two)", folder.display()));
        if let Err(error) = build_free_threaded(&folder) {
            say(&format!("{error:#}: tests of CPython without the GIL are skipped"));
        }
    }
    let given = given.iter().flat_map(|list| env::split_paths(list));
    env::join_paths(given.chain(fetched())).context("the path of an interpreter")
}

fn fetch(folder: &Path) -> Result<()> {
    let tools = programs::target_folder()?.join("uv");
    let uv = tools.join("bin/uv");
    if !uv.exists() {
        install_wheel("uv", &tools)?;
    }
    do_or_fail(Command::new(uv).args(["python", "install", "--install-dir"]).arg(folder).args(FETCHED))
}

fn build_free_threaded(folder: &Path) -> Result<()> {
    let building = folder.join(".building");
    fs::create_dir_all(&building).with_context(|| format!("making `{}`", building.display()))?;
    let archive = building.join("source.tar.xz");
    download(SOURCE, SOURCE_SHA256, &archive)?;
    do_or_fail(Command::new("tar").args(["--no-same-owner", "-xJf"]).arg(&archive).arg("-C").arg(&building))?;
    let source = building.join(SOURCE_FOLDER);
    let quiet = |program: &str, arguments: &[&str]| {
        do_or_fail(Command::new(program).args(arguments).current_dir(&source).stdout(Stdio::null()))
    };
    let prefix = format!("--prefix={}", folder.join(BUILT).display());
    let without = ["--disable-gil", "--without-ensurepip", "--disable-test-modules"];
    quiet("./configure", &[&["--quiet", &prefix, "CFLAGS=-O1 -g0"], &without[..]].concat())?;
    let jobs = available_parallelism().map_or(1, usize::from);
    quiet("make", &["--silent", &format!("--jobs={jobs}")])?;
    quiet("make", &["--silent", "install"])?;
    fs::remove_dir_all(&building).with_context(|| format!("removing `{}`", building.display()))
}
