//! `cargo xtask verify parquet`: compares the Parquet tables of recordings with their lines.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result};

use crate::{prerequisites, programs, repository, tool};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folders of recordings
    #[arg(value_name = "INPUT", required = true)]
    inputs: Vec<PathBuf>,

    /// Also read the tables with Spark, which is fetched (450 MB) and needs Java
    #[arg(long)]
    spark: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let spark: &[_] = if args.spark { &[prerequisites::SPARK] } else { &[] };
    let python_path = prerequisites::python_path(spark)?;
    let programs = programs::build_release(&["ncclflow"])?;
    let engines: &[&str] = if args.spark { &["duckdb", "spark"] } else { &["duckdb"] };
    for input in &args.inputs {
        let folder = programs::target_folder()?.join("parquet");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("removing `{}`", folder.display()))?;
        }
        fs::create_dir_all(&folder)?;
        let (lines, tables) = (folder.join("lines"), folder.join("tables"));
        let export = |format: &str, output: &Path| -> Result<f64> {
            let begun = Instant::now();
            let mut export = Command::new(programs.join("ncclflow"));
            export.arg("export").arg(input).args(["-f", format]);
            if format == "parquet" {
                export.arg("--planned-messages");
            }
            tool::output(export.arg("-o").arg(output))?;
            Ok(begun.elapsed().as_secs_f64())
        };
        let (as_lines, as_tables) = (export("jsonl", &lines)?, export("parquet", &tables)?);
        println!("{}: {as_lines:.1} s as lines, {as_tables:.1} s as Parquet tables", input.display());
        for engine in engines {
            let mut compare = Command::new("python3");
            compare.arg(repository::root().join("tests/parquet/compare.py")).arg(&tables).arg(&lines);
            compare.args(["--planned-messages", "--engine", engine]).env("PYTHONPATH", &python_path);
            let begun = Instant::now();
            let rows = tool::output(&mut compare)?;
            let rows = String::from_utf8_lossy(&rows).trim().to_owned();
            println!("{engine}, {:.1} s, all the same: {rows}", begun.elapsed().as_secs_f64());
        }
    }
    Ok(())
}
