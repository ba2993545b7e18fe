//! Calls of NVML. Each may be missing in an old library, refused by a GPU, or never return.

use std::{
    collections::BTreeMap,
    ffi::{CStr, OsStr, c_char},
    fmt::Display,
    mem,
    path::Path,
    ptr,
    time::{SystemTime, UNIX_EPOCH},
};

use nvml_wrapper_sys::bindings::{
    NvmlLib, field_id, nvmlDevice_t, nvmlFieldValue_t, nvmlPciInfo_t, nvmlProcessInfo_t,
    nvmlProcessUtilizationSample_t, nvmlUtilization_t, nvmlValue_t,
};

use crate::trusted;

use super::{
    gpm::GpmSamples,
    reading::{Activity, GpuProcess, GpuReading, Utilisation},
    report::GpuReport,
    xid_events::XidEvents,
};

/// `NVML_SUCCESS`, `NVML_ERROR_NOT_FOUND`, `NVML_ERROR_INSUFFICIENT_SIZE`.
pub(super) const SUCCESS: u32 = 0;
pub(super) const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
/// Maximum number of GPUs, more than a host has.
const MAX_DEVICES: u32 = 256;
const MAX_INSTANCES: u32 = 16;
/// Maximum number of processes, or samples of processes, of one GPU.
const MAX_ENTRIES: u32 = 4096;
const MICROSECONDS: u64 = 1_000_000;

/// `nvmlClocksEventReasons` by the names in NVML's documentation. `GpuIdle` is left out: it is no reason to
/// look into.
const REASONS: [(u64, &str); 8] = [
    (0x2, "applicationsClocksSetting"),
    (0x4, "swPowerCap"),
    (0x8, "hwSlowdown"),
    (0x10, "syncBoost"),
    (0x20, "swThermalSlowdown"),
    (0x40, "hwThermalSlowdown"),
    (0x80, "hwPowerBrakeSlowdown"),
    (0x100, "displayClockSetting"),
];

/// Calls a getter whose last argument is the place of its answer. Gives the answer, or `None` where the
/// library has no such function or the driver refuses.
macro_rules! get {
    ($lib:expr, $function:ident($($argument:expr),*), $default:expr) => {{
        let mut answer = $default;
        let code = $lib.$function.as_ref().ok().map(|function| {
            // SAFETY: the function has the signature that NVML documents, its handles came from NVML, and the
            // place of the answer lives until it returns.
            unsafe { function($($argument,)* &raw mut answer) }
        });
        (code == Some(SUCCESS)).then_some(answer)
    }};
}

/// NVML, loaded and initialised, for use by one thread.
pub(super) struct Nvml {
    pub(super) lib: NvmlLib,
    /// Events of errors, if errors are wanted as they come.
    pub(super) events: Option<XidEvents>,
    gpm: GpmSamples,
    /// Highest clocks of the SMs, by the number of the GPU: they stay, and the question takes 1 ms.
    max_clocks: BTreeMap<u32, Option<u32>>,
}

impl Nvml {
    /// Loads the library of this name or path.
    ///
    /// # Errors
    /// A sentence if there is no such library or it cannot be initialised.
    pub(super) fn open(library: &OsStr) -> Result<Self, String> {
        let failed = |why: &dyn Display| format!("NVML cannot be used: {why}");
        // A bare name is looked for in the loader's own folders. A path is what somebody gave.
        let is_path = library.as_encoded_bytes().contains(&b'/');
        let trusted = is_path.then(|| trusted(Path::new(library))).transpose();
        let trusted = trusted.map_err(|error| failed(&format_args!("`{}`: {error}", library.display())))?;
        let library = trusted.as_ref().map_or(library, |path| path.as_os_str());
        // SAFETY: loading runs the library's initialisers. It is the driver's own library, found as any
        // program finds it, or the one that the user who runs this named, which nobody else can change.
        let lib = unsafe { NvmlLib::new(library) }.map_err(|error| failed(&error))?;
        let init = lib.nvmlInit_v2.as_ref().map_err(|_| failed(&"it has no `nvmlInit_v2`"))?;
        // SAFETY: takes no arguments.
        let code = unsafe { init() };
        if code != SUCCESS {
            return Err(failed(&format_args!("`nvmlInit_v2` answered {code}{}", text_of(&lib, code))));
        }
        Ok(Self { lib, events: None, gpm: GpmSamples::default(), max_clocks: BTreeMap::new() })
    }

    /// Reads all GPUs that can be read.
    pub(super) fn read(&mut self) -> Vec<GpuReading> {
        let xids = self.take_xids();
        let devices: Vec<(u32, nvmlDevice_t)> = self.devices().collect();
        let read = |(index, device)| {
            let of_device = xids.iter().filter(|(other, _)| *other == device);
            let xids = of_device.map(|(_, xid)| *xid).collect();
            GpuReading { xids, ..self.read_one(index, device) }
        };
        devices.into_iter().map(read).collect()
    }

    /// Returns the numbers and handles of all GPUs.
    pub(super) fn devices(&self) -> impl Iterator<Item = (u32, nvmlDevice_t)> {
        let count = get!(self.lib, nvmlDeviceGetCount_v2(), 0).unwrap_or(0).min(MAX_DEVICES);
        (0..count).filter_map(|index| Some((index, self.device(index)?)))
    }

    fn device(&self, index: u32) -> Option<nvmlDevice_t> {
        get!(self.lib, nvmlDeviceGetHandleByIndex_v2(index), ptr::null_mut())
    }

    fn read_one(&mut self, index: u32, device: nvmlDevice_t) -> GpuReading {
        /// `NVML_CLOCK_SM`, `NVML_TEMPERATURE_GPU`, `NVML_TEMPERATURE_THRESHOLD_SLOWDOWN`,
        /// `NVML_MEMORY_ERROR_TYPE_UNCORRECTED`, `NVML_VOLATILE_ECC`.
        const SM: u32 = 1;
        const GPU: u32 = 0;
        const SLOWDOWN: u32 = 1;
        const UNCORRECTED: u32 = 1;
        const VOLATILE: u32 = 0;
        let lib = &self.lib;
        let activity = self.gpm.take(lib, index, device).unwrap_or_default();
        let max_clock = || get!(lib, nvmlDeviceGetMaxClockInfo(device, SM), 0);
        let sm_clock_max_mhz = *self.max_clocks.entry(index).or_insert_with(max_clock);
        let used = get!(lib, nvmlDeviceGetUtilizationRates(device), nvmlUtilization_t { gpu: 0, memory: 0 });
        let used = used.map_or_else(Utilisation::default, |used| Utilisation {
            sm_percent: Some(used.gpu),
            memory_percent: Some(used.memory),
        });
        let [sent, received, pcie_sent, pcie_received] = self.counters(device, &activity);
        let now = GpuReading::now(GpuReport::default());
        let kib = |value: Option<u64>| value.and_then(|value| value.checked_mul(1024));
        let reasons = get!(lib, nvmlDeviceGetCurrentClocksEventReasons(device), 0)
            .or_else(|| get!(lib, nvmlDeviceGetCurrentClocksThrottleReasons(device), 0))
            .unwrap_or(0);
        let reasons = REASONS.iter().filter(|(bit, _)| reasons & bit != 0);
        let gpu = GpuReport {
            index,
            uuid: text(device, &self.lib.nvmlDeviceGetUUID),
            bus_id: self.bus_id(device),
            name: text(device, &self.lib.nvmlDeviceGetName),
            used,
            residency: activity.residency(),
            processes: self.processes(device, used),
            sm_clock_mhz: get!(lib, nvmlDeviceGetClockInfo(device, SM), 0),
            sm_clock_max_mhz,
            throttled_by: reasons.map(|(_, name)| (*name).to_owned()).collect(),
            ecc_uncorrected: get!(lib, nvmlDeviceGetTotalEccErrors(device, UNCORRECTED, VOLATILE), 0),
            temperature: get!(lib, nvmlDeviceGetTemperature(device, GPU), 0),
            temperature_limit: get!(lib, nvmlDeviceGetTemperatureThreshold(device, SLOWDOWN), 0),
            instances: self.instances(device),
            ..GpuReport::default()
        };
        GpuReading {
            gpu,
            activity,
            nvlink: kib(sent).zip(kib(received)).map(|(sent, received)| [sent, received]),
            pcie: pcie_sent.zip(pcie_received).map(|(sent, received)| [sent, received]),
            power: get!(lib, nvmlDeviceGetPowerUsage(device), 0),
            power_limit: get!(lib, nvmlDeviceGetEnforcedPowerLimit(device), 0),
            ..now
        }
    }

    fn bus_id(&self, device: nvmlDevice_t) -> Option<String> {
        // SAFETY: integers, of which 0 is a value.
        let none: nvmlPciInfo_t = unsafe { mem::zeroed() };
        let pci = get!(self.lib, nvmlDeviceGetPciInfo_v3(device), none)?;
        Some(format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device))
    }

    /// Reads counters: NVLink sent and received in KiB, PCIe sent and received in bytes unless they are
    /// known.
    fn counters(&self, device: nvmlDevice_t, known: &Activity) -> [Option<u64>; 4] {
        /// All links of the GPU together.
        const ALL_LINKS: u32 = u32::MAX;
        let field = |id, scope| nvmlFieldValue_t {
            fieldId: id,
            scopeId: scope,
            timestamp: 0,
            latencyUsec: 0,
            valueType: 0,
            // A field that NVML does not answer keeps this, and is not taken.
            nvmlReturn: NOT_FOUND,
            value: nvmlValue_t { ullVal: 0 },
        };
        let mut fields = [
            field(field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
            field(field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
            field(field_id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0),
            field(field_id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0),
        ];
        let Ok(function) = &self.lib.nvmlDeviceGetFieldValues else { return [None; 4] };
        let asked = if known.pcie.is_some() { 2 } else { 4 };
        // SAFETY: NVML fills as many fields as it is told, of which there are no fewer.
        let code = unsafe { function(device, asked, fields.as_mut_ptr()) };
        fields.map(|field| {
            /// `NVML_VALUE_TYPE_UNSIGNED_INT` and the wider ones, all little-endian in the same union.
            const UNSIGNED_INT: u32 = 1;
            let is_known = code == SUCCESS && field.nvmlReturn == SUCCESS;
            is_known.then(|| {
                // SAFETY: eight bytes that were set to 0 above, whichever member NVML wrote.
                let value = unsafe { field.value.ullVal };
                if field.valueType == UNSIGNED_INT { value & u64::from(u32::MAX) } else { value }
            })
        })
    }

    /// Returns the processes with compute contexts, each with its use of the GPU. Where there is only one,
    /// the use of the whole GPU is its own.
    fn processes(&self, device: nvmlDevice_t, used: Utilisation) -> Option<Vec<GpuProcess>> {
        let function = self.lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref().ok()?;
        let none = nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        // SAFETY: NVML fills at most as many entries as it is told.
        let running = entries(none, |place, count| unsafe { function(device, count, place) })?;
        let samples = self.samples(device);
        let is_only = running.len() == 1;
        let of_process = |info: &nvmlProcessInfo_t| {
            let own = samples.iter().flatten().filter(|sample| sample.pid == info.pid);
            let latest = own.max_by_key(|sample| sample.timeStamp).map(|sample| Utilisation {
                sm_percent: Some(sample.smUtil.min(100)),
                memory_percent: Some(sample.memUtil.min(100)),
            });
            // A GPU on which nothing ran has run no process.
            let by_all = (is_only || used.sm_percent == Some(0)).then_some(used);
            GpuProcess {
                pid: info.pid,
                memory_bytes: Some(info.usedGpuMemory).filter(|bytes| *bytes != u64::MAX),
                used: latest.or(by_all).unwrap_or_default(),
            }
        };
        Some(running.iter().map(of_process).collect())
    }

    /// Returns the driver's samples of processes over the last second; it takes one every 1/6 to 1 s.
    fn samples(&self, device: nvmlDevice_t) -> Option<Vec<nvmlProcessUtilizationSample_t>> {
        let function = self.lib.nvmlDeviceGetProcessUtilization.as_ref().ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_micros();
        let since = u64::try_from(now).ok()?.saturating_sub(MICROSECONDS);
        // SAFETY: integers, of which 0 is a value.
        let none: nvmlProcessUtilizationSample_t = unsafe { mem::zeroed() };
        // SAFETY: NVML fills at most as many entries as it is told.
        entries(none, |place, count| unsafe { function(device, place, count, since) })
    }

    fn instances(&self, device: nvmlDevice_t) -> Vec<String> {
        let count = get!(self.lib, nvmlDeviceGetMaxMigDeviceCount(device), 0).unwrap_or(0);
        let instance = |index| {
            let handle = get!(self.lib, nvmlDeviceGetMigDeviceHandleByIndex(device, index), ptr::null_mut())?;
            text(handle, &self.lib.nvmlDeviceGetUUID)
        };
        (0..count.min(MAX_INSTANCES)).filter_map(instance).collect()
    }
}

/// Describes an error code: ` (Driver Not Loaded)`.
fn text_of(lib: &NvmlLib, code: u32) -> String {
    let Ok(function) = &lib.nvmlErrorString else { return String::new() };
    // SAFETY: NVML answers with a constant string, or null.
    let text = unsafe { function(code) };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and a C string that is never freed.
    let text = unsafe { CStr::from_ptr(text) };
    format!(" ({})", text.to_string_lossy())
}

type TextGetter = unsafe extern "C" fn(nvmlDevice_t, *mut c_char, u32) -> u32;

/// Returns the C string that a function writes into a buffer, without control characters.
fn text<E>(device: nvmlDevice_t, function: &Result<TextGetter, E>) -> Option<String> {
    let (function, mut bytes) = (function.as_ref().ok()?, [0u8; 96]);
    // SAFETY: NVML writes at most as many bytes as it is told.
    if unsafe { function(device, bytes.as_mut_ptr().cast(), 95) } != SUCCESS {
        return None;
    }
    let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_string_lossy();
    Some(text.chars().filter(|c| !c.is_control()).collect())
}

/// Returns a list that NVML writes. NVML answers with the length that it needs until the list is long enough;
/// "not found" is an empty list.
fn entries<T: Clone>(none: T, fill: impl Fn(*mut T, *mut u32) -> u32) -> Option<Vec<T>> {
    let mut room = 64;
    for _ in 0..3 {
        let mut list = vec![none.clone(); room as usize];
        let mut count = room;
        match fill(list.as_mut_ptr(), &raw mut count) {
            SUCCESS => {
                list.truncate(count.min(room) as usize);
                return Some(list);
            }
            NOT_FOUND => return Some(Vec::new()),
            INSUFFICIENT_SIZE => room = count.saturating_add(16).clamp(room, MAX_ENTRIES),
            _ => return None,
        }
    }
    None
}
