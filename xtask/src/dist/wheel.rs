//! The wheel: `pip install ncclflow`. The program is the wheel's script.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::staging::{copy, source_time};
use crate::{prerequisites, programs, repository, tool};

/// Package that packs the wheel and writes the list of its files. The version is fixed: the same sources give
/// the same wheel.
const PACKER: &str = "wheel==0.48.0";

const HOMEPAGE: &str = "https://github.com/ncclflow/ncclflow";

const LICENCES: [&str; 4] = ["LICENSE-MIT", "LICENSE-APACHE", "LICENSE-GPL-2.0", "THIRD-PARTY-LICENSES"];

/// Files of the tree, and their places below the folder that pip installs into.
const SHARED: [(&str, &str); 3] = [
    ("completions/ncclflow.bash", "share/bash-completion/completions/ncclflow"),
    ("completions/_ncclflow", "share/zsh/site-functions/_ncclflow"),
    ("completions/ncclflow.fish", "share/fish/vendor_completions.d/ncclflow.fish"),
];

/// Makes the wheel from the tree.
pub(super) fn pack(root: &Path, tree: &Path, version: &str, target: &str, output: &Path) -> Result<PathBuf> {
    let platform = match target {
        "x86_64-unknown-linux-gnu" => "manylinux_2_28_x86_64",
        "aarch64-unknown-linux-gnu" => "manylinux_2_28_aarch64",
        _ => bail!("a wheel has the program that is linked to glibc: there is none for `{target}`"),
    };
    let tag = format!("py3-none-{platform}");
    let name = format!("ncclflow-{version}");
    let data = root.join(format!("{name}.data"));
    copy(&tree.join("ncclflow"), &data.join("scripts/ncclflow"), 0o755)?;
    for (from, to) in SHARED {
        copy(&tree.join(from), &data.join("data").join(to), 0o644)?;
    }
    for entry in fs::read_dir(tree.join("man")).context("listing the man pages")? {
        let entry = entry?;
        copy(&entry.path(), &data.join("data/share/man/man1").join(entry.file_name()), 0o644)?;
    }
    let about = root.join(format!("{name}.dist-info"));
    for licence in LICENCES {
        copy(&tree.join(licence), &about.join("licenses").join(licence), 0o644)?;
    }
    let readme = fs::read_to_string(tree.join("README.md")).context("reading README.md")?;
    write(&about.join("METADATA"), &metadata(version, &readme)?)?;
    let description =
        format!("Wheel-Version: 1.0\nGenerator: ncclflow {version}\nRoot-Is-Purelib: false\nTag: {tag}\n");
    write(&about.join("WHEEL"), &description)?;

    let mut packer = Command::new("python3");
    packer.args(["-m", "wheel", "pack", "--dest-dir"]).arg(output).arg(root);
    packer.env("PYTHONPATH", packer_folder()?).env("SOURCE_DATE_EPOCH", source_time()?);
    tool::run(&mut packer, "the wheel")?;
    Ok(output.join(format!("{name}-{tag}.whl")))
}

/// Returns the folder with PyPI's `wheel`, fetched where it is not there.
fn packer_folder() -> Result<PathBuf> {
    let folder = programs::target_folder()?.join("python-wheel");
    if !folder.join("wheel/__main__.py").exists() {
        prerequisites::fetch_wheel(PACKER, &folder)?;
    }
    Ok(folder)
}

/// Writes a file whose mode is that of the wheel's member, whatever the umask is.
fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o644)))
        .with_context(|| format!("writing `{}`", path.display()))
}

fn metadata(version: &str, readme: &str) -> Result<String> {
    let mut text = format!(
        "\
Metadata-Version: 2.4
Name: ncclflow
Version: {version}
Summary: See what NCCL decides and sends in jobs that are already running
License-Expression: (MIT OR Apache-2.0) AND (MIT OR GPL-2.0-only)
"
    );
    for licence in LICENCES {
        writeln!(text, "License-File: {licence}")?;
    }
    write!(
        text,
        "\
Project-URL: Homepage, {HOMEPAGE}
Project-URL: Changelog, {HOMEPAGE}/blob/v{version}/CHANGELOG.md
Classifier: Development Status :: 4 - Beta
Classifier: Environment :: Console
Classifier: Environment :: GPU :: NVIDIA CUDA
Classifier: Intended Audience :: Developers
Classifier: Intended Audience :: System Administrators
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Rust
Classifier: Topic :: System :: Distributed Computing
Classifier: Topic :: System :: Monitoring
Description-Content-Type: text/markdown

{}",
        with_full_links(readme, version)?
    )?;
    Ok(text)
}

/// Returns the README with links that lead to the repository from elsewhere.
fn with_full_links(readme: &str, version: &str) -> Result<String> {
    const LINK: &str = "](";
    let mut parts = readme.split(LINK);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(LINK);
        let target = part.split(')').next().unwrap_or_default();
        if !target.contains("://") && !target.starts_with('#') {
            if !repository::root().join(target.split('#').next().unwrap_or_default()).exists() {
                bail!("README.md has a link to `{target}`, which is not there");
            }
            let view = if target.starts_with("docs/images/") { "raw" } else { "blob" };
            write!(text, "{HOMEPAGE}/{view}/v{version}/")?;
        }
        text.push_str(part);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_readme_lead_to_this_version_in_the_repository() {
        let readme = "[a](docs/GUIDE.md) [b](https://x/y) [c](#how) ![d](docs/images/top.svg)";
        assert_eq!(
            with_full_links(readme, "1.2.3").unwrap(),
            "[a](https://github.com/ncclflow/ncclflow/blob/v1.2.3/docs/GUIDE.md) [b](https://x/y) [c](#how) \
             ![d](https://github.com/ncclflow/ncclflow/raw/v1.2.3/docs/images/top.svg)"
        );
    }
}
