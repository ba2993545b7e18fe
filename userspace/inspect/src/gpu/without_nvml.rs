//! GPUs without NVML: names from the driver's files in `/proc`, and the answer of `nvidia-smi`.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use super::{
    driver_files::{GPUS, field, information, uuid_in},
    reading::{GpuReading, Utilisation},
};
use crate::unresponsive::end_within;

const PROGRAM: &str = "/usr/bin/nvidia-smi";
/// Values that the program is asked for, in the order of [`parse`].
const QUERY: &str = "--query-gpu=index,uuid,pci.bus_id,name,utilization.gpu,utilization.memory,clocks.sm,clocks.max.sm,temperature.gpu,power.draw,enforced.power.limit";
/// Time that the program may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of bytes of the program's answer; a GPU has some 150. A pipe holds as many, so the program
/// never waits for a reader.
const MAX_ANSWER: u64 = 64 << 10;
/// Maximum number of GPUs, more than a host has.
const MAX_GPUS: usize = 256;

/// Sources of what is known of GPUs without NVML.
#[derive(Debug)]
pub(super) struct WithoutNvml {
    /// The driver's folder for each GPU. Its files are read only by a thread that may be lost in the driver.
    gpus: PathBuf,
    has_names: bool,
    /// The program; `None` if none can be trusted, or it did not answer.
    program: Option<PathBuf>,
    has_run: bool,
    is_named: bool,
}

impl WithoutNvml {
    /// Finds the sources; `None` if nothing here tells of a GPU.
    pub(super) fn find() -> Option<Self> {
        let without = Self::of(Path::new(GPUS), trusted(Path::new(PROGRAM)));
        (without.has_names || without.program.is_some()).then_some(without)
    }

    fn of(gpus: &Path, program: Option<PathBuf>) -> Self {
        let has_names = fs::read_dir(gpus).is_ok_and(|mut entries| entries.next().is_some());
        Self { gpus: gpus.to_path_buf(), has_names, program, has_run: false, is_named: false }
    }

    pub(super) fn asks_program(&self) -> bool {
        self.program.is_some()
    }

    /// Tells whether the program is still to be asked for the first time.
    pub(super) fn has_more(&self) -> bool {
        self.program.is_some() && !self.has_run
    }

    /// Reads the GPUs. The first answer has only the names, which are there at once: the program can take
    /// seconds.
    pub(super) fn read(&mut self) -> Vec<GpuReading> {
        let wants_names = self.has_names && !std::mem::replace(&mut self.is_named, true);
        if !wants_names && let Some(program) = &self.program {
            self.has_run = true;
            let mut command = Command::new(program);
            command.args([QUERY, "--format=csv,noheader,nounits"]).env_clear().current_dir("/");
            match answer(command, PATIENCE) {
                Some(text) => return parse(&text),
                // The program is not started again: one that hangs in the driver cannot be ended.
                None => self.program = None,
            }
        }
        names(&self.gpus)
    }
}

/// Returns the GPUs of the driver's folder, by PCI address, as NVML counts them.
fn names(gpus: &Path) -> Vec<GpuReading> {
    let entries = fs::read_dir(gpus).into_iter().flatten().flatten().take(MAX_GPUS);
    let mut found: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    found.sort();
    let of = |(index, bus_id): (u32, String)| {
        let text = information(gpus, &bus_id)?;
        let name = field(&text, "Model:").map(str::to_owned);
        Some(GpuReading { uuid: uuid_in(&text), name, ..GpuReading::unknown(index, Some(bus_id)) })
    };
    (0..).zip(found).filter_map(of).collect()
}

/// Resolves the path of a program, if only root can have put it there: it runs with the rights of this one.
fn trusted(program: &Path) -> Option<PathBuf> {
    let program = fs::canonicalize(program).ok()?;
    let is_roots =
        |path: &Path| fs::metadata(path).is_ok_and(|about| about.uid() == 0 && about.mode() & 0o022 == 0);
    program.ancestors().all(is_roots).then_some(program)
}

/// Runs a program and returns what it prints, if it ends well in this time. One that does not is killed, and
/// not waited for.
fn answer(mut command: Command, patience: Duration) -> Option<String> {
    let piped = command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    let mut child = piped.spawn().ok()?;
    if !end_within(&mut child, patience).is_some_and(|status| status.success()) {
        let _ = child.kill();
        let _ = child.try_wait();
        return None;
    }
    let mut text = String::new();
    child.stdout?.take(MAX_ANSWER).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Parses a GPU from each line. A value that the program does not know is `[N/A]`, and `None` here.
fn parse(text: &str) -> Vec<GpuReading> {
    text.lines().filter_map(gpu).take(MAX_GPUS).collect()
}

fn gpu(line: &str) -> Option<GpuReading> {
    let values: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, uuid, bus_id, name, sm, memory, clock, clock_max, temperature, power, power_limit] = *values
    else {
        return None;
    };
    let number = |text: &str| text.parse::<u32>().ok();
    let milliwatts = |text: &str| {
        let (watts, rest) = text.split_once('.').unwrap_or((text, "0"));
        let thousandths = format!("{rest:0<3}").get(..3)?.parse::<u32>().ok()?;
        watts.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(thousandths)
    };
    Some(GpuReading {
        uuid: uuid.starts_with("GPU-").then(|| uuid.to_owned()),
        name: Some(name.to_owned()).filter(|name| !name.starts_with('[')),
        used: Utilisation { sm_percent: number(sm), memory_percent: number(memory) },
        sm_clock_mhz: number(clock),
        sm_clock_max_mhz: number(clock_max),
        temperature: number(temperature),
        power: milliwatts(power),
        power_limit: milliwatts(power_limit),
        ..GpuReading::unknown(number(index)?, address(bus_id))
    })
}

/// Turns `00000000:3B:00.0` into `0000:3b:00.0`.
fn address(bus_id: &str) -> Option<String> {
    let (domain, rest) = bus_id.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    Some(format!("{domain:04x}:{}", rest.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, time::Instant};

    use super::*;

    #[test]
    fn the_driver_s_folder_names_the_gpus_in_nvml_s_order() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!WithoutNvml::of(folder.path(), None).has_names);
        let uuid = "GPU-3f0e3e0c-2c5d-6b5e-9d5a-0123456789ab";
        for (bus_id, uuid) in [("0000:d8:00.0", "GPU-????????"), ("0000:3b:00.0", uuid)] {
            let gpu = folder.path().join(bus_id);
            fs::create_dir(&gpu).unwrap();
            let text = format!(
                "Model: \t\t NVIDIA H200\nIRQ:   \t\t 301\nGPU UUID: \t {uuid}\nDevice Minor: \t 3\n"
            );
            fs::write(gpu.join("information"), text).unwrap();
        }
        let mut without = WithoutNvml::of(folder.path(), None);
        for _ in 0..2 {
            let gpus = without.read();
            let facts: Vec<_> = gpus
                .iter()
                .map(|gpu| (gpu.index, gpu.bus_id.as_deref().unwrap(), gpu.uuid.as_deref()))
                .collect();
            assert_eq!(facts, [(0, "0000:3b:00.0", Some(uuid)), (1, "0000:d8:00.0", None)]);
            assert!(gpus.iter().all(|gpu| gpu.name.as_deref() == Some("NVIDIA H200")));
        }
    }

    #[test]
    fn names_come_first_and_a_program_that_fails_is_not_run_again() {
        let folder = tempfile::tempdir().unwrap();
        let (gpus, program) = (folder.path().join("gpus"), folder.path().join("nvidia-smi"));
        fs::create_dir_all(gpus.join("0000:3b:00.0")).unwrap();
        fs::write(gpus.join("0000:3b:00.0/information"), "Model: \t\t NVIDIA H200\n").unwrap();
        // The script answers once.
        let line = "0, GPU-3f0e, 00000000:3B:00.0, NVIDIA H200, 99, 0, 1980, 1980, 41, 120.5, 700.00";
        let script =
            format!("#!/bin/sh\n/bin/mkdir {}/was || exit 9\necho '{line}'\n", folder.path().display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut without = WithoutNvml::of(&gpus, Some(program));
        let mut busy = || {
            let gpus = without.read();
            let [gpu] = &*gpus else { panic!("{gpus:?}") };
            assert_eq!(gpu.bus_id.as_deref(), Some("0000:3b:00.0"));
            (gpu.used.sm_percent, without.has_more(), without.asks_program())
        };
        assert_eq!(busy(), (None, true, true));
        assert_eq!(busy(), (Some(99), false, true));
        assert_eq!(busy(), (None, false, false));
    }

    /// The first line as driver 580.159.04 prints it for an H100; the second GPU is divided (MIG).
    #[test]
    fn a_line_is_a_gpu_and_what_it_does_not_know_is_not_there() {
        let text = "0, GPU-126c071a-1253-3d49-71ab-17c686b110d5, 00000000:00:06.0, NVIDIA H100 80GB HBM3, 0, 0, 345, 1980, 35, 70.69, 700.00\n\
                    1, GPU-4a1b, 00010000:D8:00.0, NVIDIA H200, [N/A], [N/A], 345, 1980, 30, 75.5, [N/A]\n\
                    No devices were found\n";
        let gpus = parse(text);
        let [idle, divided] = &*gpus else { panic!("{gpus:?}") };
        assert_eq!((idle.index, idle.bus_id.as_deref()), (0, Some("0000:00:06.0")));
        assert_eq!((idle.used.sm_percent, idle.used.memory_percent), (Some(0), Some(0)));
        assert_eq!((idle.power, idle.power_limit), (Some(70_690), Some(700_000)));
        assert_eq!(
            (idle.sm_clock_mhz, idle.sm_clock_max_mhz, idle.temperature),
            (Some(345), Some(1980), Some(35))
        );
        assert_eq!(divided.bus_id.as_deref(), Some("10000:d8:00.0"));
        assert_eq!((divided.used.sm_percent, divided.power, divided.power_limit), (None, Some(75_500), None));
    }

    #[test]
    fn only_what_root_has_put_there_is_run() {
        let shell = fs::canonicalize("/bin/sh").unwrap();
        assert_eq!(trusted(Path::new("/bin/sh")), Some(shell));
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("nvidia-smi");
        fs::write(&own, "").unwrap();
        assert_eq!(trusted(&own), None, "anybody may write above it");
        assert_eq!(trusted(&folder.path().join("none")), None);
    }

    #[test]
    fn a_program_that_hangs_or_fails_has_no_answer() {
        let shell = |script: &str, patience| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            answer(command, patience)
        };
        let long = Duration::from_secs(60);
        assert_eq!(shell("echo 0, GPU-1", long).as_deref(), Some("0, GPU-1\n"));
        assert_eq!(shell("echo 0; exit 9", long), None);
        let began = Instant::now();
        assert_eq!(shell("exec sleep 60", Duration::from_millis(50)), None);
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
