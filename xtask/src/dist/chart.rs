//! The Helm chart, packed: `helm install ncclflow ncclflow-VERSION.tgz`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::staging::source_time;
use crate::{prerequisites, tool};

/// Folder of the chart in the tree.
const FOLDER: &str = "dist/helm/ncclflow";

/// Makes the archive from the tree, of the version of the program. The same sources give the same archive:
/// helm keeps the times of the files, which get that of the last commit.
pub(super) fn pack(tree: &Path, version: &str, output: &Path) -> Result<PathBuf> {
    let chart = tree.join(FOLDER);
    let mut touch = Command::new("find");
    touch.arg(&chart).args(["-exec", "touch", &format!("--date=@{}", source_time()?), "{}", "+"]);
    tool::run(&mut touch, "the times of the chart's files")?;
    let mut helm = Command::new(prerequisites::helm()?);
    helm.arg("package").arg(&chart).args(["--version", version, "--app-version", version]);
    tool::output(helm.arg("--destination").arg(output))?;
    Ok(output.join(format!("ncclflow-{version}.tgz")))
}
