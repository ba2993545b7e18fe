//! Where the programs and libraries under test are.

use std::{
    env, fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use test_support::{need, root, skip};

/// The folder that cargo puts programs into: where we are, or above the folders of tests and examples.
fn target_folder() -> PathBuf {
    let here = env::current_exe().unwrap_or_default();
    let folder = here.parent().unwrap_or(Path::new(""));
    let inside = folder.file_name().is_some_and(|name| name == "deps" || name == "examples");
    if inside { folder.parent().unwrap_or(folder) } else { folder }.to_path_buf()
}

fn built(name: &str) -> Option<PathBuf> {
    let path = target_folder().join(name);
    need("programs", path.exists(), "run `cargo xtask test`, which builds the programs first").then_some(path)
}

/// `ncclflow`.
pub fn ncclflow() -> Option<PathBuf> {
    built("ncclflow")
}

/// `ncclflow-bed`.
pub fn bed() -> Option<PathBuf> {
    built("ncclflow-bed")
}

/// The bed as a shared library, for programs that call NCCL themselves.
pub fn bed_library() -> Option<PathBuf> {
    built("libncclflow_bed.so")
}

/// `ncclflow-patterns`.
pub fn patterns() -> Option<PathBuf> {
    built("ncclflow-patterns")
}

/// The NVML double. Root loads no library of another user, and the programs may be another user's who built them: then it
/// is a copy, which stays until the system's temporary files go.
pub fn nvml_double() -> Option<PathBuf> {
    let path = built("libnvidia_ml.so")?;
    if inspect::trusted(&path).is_ok() {
        return Some(path);
    }
    let folder = tempfile::Builder::new().prefix("ncclflow-nvml").tempdir().ok()?.keep();
    let copy = folder.join("libnvidia_ml.so");
    fs::copy(&path, &copy).ok()?;
    Some(copy)
}

/// The double of CUDA's driver.
pub fn cuda_double() -> Option<PathBuf> {
    built("libcuda.so")
}

/// The profiler plugin.
pub fn truth_profiler() -> Option<PathBuf> {
    built("libncclflow_truth_profiler.so")
}

/// `ncclflow`, as root.
pub fn tracer() -> Option<PathBuf> {
    ncclflow().filter(|_| root())
}

/// What most tests need: `ncclflow`, the bed, an official library, and root.
pub fn needed(version: &str) -> Option<(PathBuf, PathBuf, PathBuf)> {
    Some((tracer()?, bed()?, nccl(version)?))
}

/// An official NCCL library out of the cache, by the name of its folder: `2.27.5-cu12`.
pub use test_support::nccl;

/// Makes a program or library out of C. `None`: there is no C compiler, which is said.
pub fn compiled(source: &str, to: &Path, options: &[&str]) -> Result<Option<PathBuf>> {
    let from = to.with_extension("c");
    fs::write(&from, source)?;
    match Command::new("cc").arg(&from).arg("-o").arg(to).args(options).status() {
        Ok(status) if status.success() => Ok(Some(to.to_path_buf())),
        Ok(status) => bail!("cc failed: {status}"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skip("cc", "install a C compiler");
            Ok(None)
        }
        Err(error) => Err(error).context("starting cc"),
    }
}

/// A Python that runs this script as a rank of a job on the bed: it is given the bed, NCCL, the NVML double, the folder,
/// its rank, and how many there are. What goes wrong it says in `RANK.err` in the folder.
pub fn python_rank(
    python: &Path,
    script: &str,
    nccl: &Path,
    folder: &Path,
    [rank, ranks]: [u32; 2],
) -> Option<Command> {
    let (bed, nvml) = (bed_library()?, nvml_double()?);
    let mut command = Command::new(python);
    command.args(["-I", script]).args([&bed, nccl, &nvml, folder]);
    command.args([rank, ranks].map(|number| number.to_string()));
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
    command.stderr(fs::File::create(folder.join(format!("{rank}.err"))).ok()?);
    Some(command)
}
