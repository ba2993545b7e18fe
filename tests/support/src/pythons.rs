//! The CPython interpreters of this machine.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::skip::need;

/// A CPython of a version that ncclflow reads (3.8 and later).
#[derive(Clone, Debug)]
pub struct Interpreter {
    /// The program itself; no link, and no script that chooses one.
    pub program: PathBuf,
    pub minor: u32,
    pub free_threaded: bool,
    /// Like `3.11.7`.
    pub release: String,
}

/// What each interpreter says of itself, a line each.
const SAYS: &str = "import os, sys, sysconfig
print(sys.implementation.name)
print(os.path.realpath(sys.executable))
print('%d.%d.%d' % sys.version_info[:3])
print(sysconfig.get_config_var('Py_GIL_DISABLED') or 0)";

/// All interpreters that are found: those of `$NCCLFLOW_PYTHONS` (separated like `$PATH`), of pyenv
/// (`$PYENV_ROOT`, or ~/.pyenv), of uv (~/.local/share/uv), of GitHub's runners (/opt/hostedtoolcache), and the system's
/// (/usr/bin, /usr/local/bin). The oldest first.
#[must_use]
pub fn pythons() -> Vec<Interpreter> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
    let mut programs: Vec<PathBuf> =
        variable("NCCLFLOW_PYTHONS").map(|list| env::split_paths(&list).collect()).unwrap_or_default();
    let pyenv = variable("PYENV_ROOT").map_or_else(|| home.join(".pyenv"), PathBuf::from);
    for folder in children(&pyenv.join("versions")).chain(children(&home.join(".local/share/uv/python"))) {
        programs.push(folder.join("bin/python3"));
    }
    for version in children(Path::new("/opt/hostedtoolcache/Python")) {
        programs.extend(children(&version).map(|machine| machine.join("bin/python3")));
    }
    for folder in ["/usr/bin", "/usr/local/bin"] {
        programs.extend(children(Path::new(folder)).filter(|path| is_python3(path)));
    }
    let found = programs.iter().filter_map(|program| interpreter(program));
    let mut found: Vec<Interpreter> =
        found.map(|found| (found.program.clone(), found)).collect::<BTreeMap<_, _>>().into_values().collect();
    found.sort_by_key(|found| (found.minor, found.free_threaded, found.release.clone()));
    found
}

/// At least two interpreters; skips if there are fewer.
///
/// # Panics
/// As [`crate::skip`] does.
#[must_use]
pub fn need_pythons() -> Option<Vec<Interpreter>> {
    let found = pythons();
    let remedy =
        "install two versions of CPython, 3.8 or later (pyenv, `uv python install`, or NCCLFLOW_PYTHONS)";
    need("pythons", found.len() >= 2, remedy).then_some(found)
}

fn children(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// `python3`, `python3.11`; not `python3-config`.
fn is_python3(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix("python3")
        .is_some_and(|rest| rest.chars().all(|c| c == '.' || c == 't' || c.is_ascii_digit()))
}

/// What a program is, if it is such an interpreter.
#[must_use]
pub fn interpreter(program: &Path) -> Option<Interpreter> {
    let mut command = Command::new(program);
    command.args(["-I", "-c", SAYS]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut lines = text.lines();
    if lines.next()? != "cpython" {
        return None;
    }
    let program = PathBuf::from(lines.next()?);
    let release = lines.next()?.to_owned();
    let minor = release.strip_prefix("3.")?.split('.').next()?.parse().ok()?;
    let free_threaded = lines.next()? == "1";
    (minor >= 8).then_some(Interpreter { program, minor, free_threaded, release })
}
