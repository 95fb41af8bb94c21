//! Whether there is a GPU that this build can use, found out without anything that could panic.
//!
//! cudarc loads the driver's functions when they are first called and panics where one is missing, so
//! everything it will call is looked up here first.
#![allow(unsafe_code)]

use super::images::Images;
use crate::Error;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

/// Names of the driver's library, in the order in which cudarc tries them.
pub const LIBRARIES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// The oldest driver interface that has every function `cuda.rs` calls.
const MIN_DRIVER: i32 = 12_020;

/// The oldest architecture the kernels are written for.
pub const MIN_ARCH: (i32, i32) = (8, 0);

/// What `cuda.rs` calls, by the names cudarc looks up.
const FUNCTIONS: [&str; 32] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuGetErrorName",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemGetInfo_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpy2DAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemsetD8Async",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
];

/// Why there is no usable GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// This library was built without nvcc.
    #[error("this build has no GPU kernels (nvcc was not found when it was built)")]
    NoKernels,
    /// The driver's library cannot be opened.
    #[error("no NVIDIA driver: {0}")]
    NoDriver(String),
    /// The library that was found is the toolkit's link-time stand-in, or otherwise no driver.
    #[error("{library} is not a driver: {detail}")]
    Stub {
        /// The file.
        library: String,
        /// How that was noticed.
        detail: String,
    },
    /// The driver is there and refuses to start.
    #[error("the NVIDIA driver does not start: cuInit gives error {0}")]
    InitFailed(i32),
    /// The driver finds no GPU (or CUDA_VISIBLE_DEVICES hides them all).
    #[error("the NVIDIA driver finds no GPU")]
    NoDevice,
    /// The driver cannot load what this build's nvcc made, or lacks functions.
    #[error(
        "the NVIDIA driver is too old: it offers CUDA {}, this build needs CUDA {}", version(*have), version(*need)
    )]
    DriverTooOld {
        /// As `cuDriverGetVersion` gives it: 1000 major + 10 minor.
        have: i32,
        /// The same of what is needed.
        need: i32,
    },
    /// The GPU is older than the kernels.
    #[error(
        "{name} has compute capability {}.{}, this build has kernels for {}.{} and newer", have.0, have.1, need.0, need.1
    )]
    NoImage {
        /// The GPU.
        name: String,
        /// Its compute capability.
        have: (i32, i32),
        /// The least one that kernels are there for.
        need: (i32, i32),
    },
    /// `device_index` names a GPU that is not there.
    #[error("device_index is {index}, the driver finds {count} GPUs")]
    NoSuchDevice {
        /// What was asked for.
        index: usize,
        /// What is there.
        count: usize,
    },
}

impl From<Reason> for Error {
    fn from(reason: Reason) -> Error {
        match reason {
            Reason::NoSuchDevice { index, count } => Error::invalid(
                "device_index",
                format!("less than {count}, the GPUs there are"),
                index,
            ),
            reason => Error::Unsupported(format!("device is CUDA: {reason}")),
        }
    }
}

fn version(v: i32) -> String {
    format!("{}.{}", v / 1000, v % 1000 / 10)
}

/// A GPU that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub arch: (i32, i32),
    /// As `cuDriverGetVersion` gives it.
    pub driver: i32,
}

/// Look for GPU `index`, with the driver from the first of `libraries` that can be opened.
pub fn preflight(images: &Images, libraries: &[&str], index: usize) -> Result<Found, Reason> {
    if images.fatbins.is_empty() {
        return Err(Reason::NoKernels);
    }
    let driver = Driver::open(libraries)?;
    for name in FUNCTIONS {
        driver.symbol(name)?;
    }
    match driver.call1("cuInit", 0)? {
        0 => {}
        34 => return Err(driver.stub("cuInit says that it is a stub")),
        100 => return Err(Reason::NoDevice),
        code => return Err(Reason::InitFailed(code)),
    }
    let have = driver.number("cuDriverGetVersion")?;
    let need = images.driver.max(MIN_DRIVER);
    if have < need {
        return Err(Reason::DriverTooOld { have, need });
    }
    let count = driver.number("cuDeviceGetCount")?;
    if count <= 0 {
        return Err(Reason::NoDevice);
    }
    let count = count as usize;
    if index >= count {
        return Err(Reason::NoSuchDevice { index, count });
    }
    let (name, arch) = driver.describe(index as c_int)?;
    if arch < MIN_ARCH {
        return Err(Reason::NoImage {
            name,
            have: arch,
            need: MIN_ARCH,
        });
    }
    Ok(Found {
        name,
        arch,
        driver: have,
    })
}

/// The driver's library. Never closed: a driver does not survive that.
struct Driver {
    handle: *mut c_void,
    name: String,
}

impl Driver {
    fn open(libraries: &[&str]) -> Result<Driver, Reason> {
        let mut words = Vec::new();
        for &name in libraries {
            let c_name = CString::new(name).unwrap_or_default();
            // SAFETY: opening a driver runs its initialisers, which is what a driver is for.
            let handle =
                unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                let name = name.into();
                return Ok(Driver { handle, name });
            }
            // SAFETY: after a failed dlopen: NULL or a string that lives until the next call here.
            let text = unsafe { libc::dlerror() };
            if !text.is_null() {
                // SAFETY: as above.
                words.push(
                    unsafe { CStr::from_ptr(text) }
                        .to_string_lossy()
                        .into_owned(),
                );
            }
        }
        Err(Reason::NoDriver(words.join("; ")))
    }

    fn stub(&self, detail: impl Into<String>) -> Reason {
        Reason::Stub {
            library: self.name.clone(),
            detail: detail.into(),
        }
    }

    fn symbol(&self, name: &str) -> Result<*mut c_void, Reason> {
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the handle is open for ever.
        let symbol = unsafe { libc::dlsym(self.handle, c_name.as_ptr()) };
        if symbol.is_null() {
            return Err(self.stub(format!("it has no {name}")));
        }
        Ok(symbol)
    }

    fn call1(&self, name: &str, flags: c_uint) -> Result<c_int, Reason> {
        let symbol = self.symbol(name)?;
        // SAFETY: CUresult cuInit(unsigned int), as cuda.h has it.
        let function: unsafe extern "C" fn(c_uint) -> c_int =
            unsafe { std::mem::transmute(symbol) };
        // SAFETY: no pointers.
        Ok(unsafe { function(flags) })
    }

    /// A function that writes one int.
    fn number(&self, name: &str) -> Result<c_int, Reason> {
        let symbol = self.symbol(name)?;
        let mut n = 0;
        // SAFETY: CUresult NAME(int *) for both names this is called with, as cuda.h has them.
        let function: unsafe extern "C" fn(*mut c_int) -> c_int =
            unsafe { std::mem::transmute(symbol) };
        // SAFETY: `n` outlives the call.
        match unsafe { function(&mut n) } {
            0 => Ok(n),
            code => Err(self.stub(format!("{name} gives error {code}"))),
        }
    }

    /// Name and compute capability of a device.
    fn describe(&self, index: c_int) -> Result<(String, (i32, i32)), Reason> {
        type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
        type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
        type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
        let (get, attribute, name) = (
            self.symbol("cuDeviceGet")?,
            self.symbol("cuDeviceGetAttribute")?,
            self.symbol("cuDeviceGetName")?,
        );
        // SAFETY: the three signatures as cuda.h has them (CUdevice and CUdevice_attribute are ints).
        let (get, attribute, name): (Get, Attribute, Name) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Get>(get),
                std::mem::transmute::<*mut c_void, Attribute>(attribute),
                std::mem::transmute::<*mut c_void, Name>(name),
            )
        };
        let failed = |what: &str, code| self.stub(format!("{what} gives error {code}"));
        let mut device = 0;
        // SAFETY: `device` outlives the call.
        match unsafe { get(&mut device, index) } {
            0 => {}
            code => return Err(failed("cuDeviceGet", code)),
        }
        let mut capability = [0; 2];
        // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
        for (value, which) in capability.iter_mut().zip([75, 76]) {
            // SAFETY: `value` outlives the call.
            match unsafe { attribute(value, which, device) } {
                0 => {}
                code => return Err(failed("cuDeviceGetAttribute", code)),
            }
        }
        let mut text = [0 as c_char; 128];
        // SAFETY: the buffer has the length given; the last byte stays 0 whatever is written.
        match unsafe { name(text.as_mut_ptr(), text.len() as c_int - 1, device) } {
            0 => {}
            code => return Err(failed("cuDeviceGetName", code)),
        }
        // SAFETY: NUL-terminated, as just said.
        let name = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok((
            name.to_string_lossy().into_owned(),
            (capability[0], capability[1]),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    const KERNELS: Images = Images {
        driver: 13_000,
        fatbins: &[("none", &[])],
    };

    /// A driver of a few lines of C, with every function that is looked up except `lacking`.
    fn driver(name: &str, [init, version, count, major]: [i32; 4], lacking: &str) -> PathBuf {
        let mut c = format!(
            "int cuInit(unsigned flags) {{ return {init}; }}\n\
             int cuDriverGetVersion(int *n) {{ *n = {version}; return 0; }}\n\
             int cuDeviceGetCount(int *n) {{ *n = {count}; return 0; }}\n\
             int cuDeviceGet(int *n, int i) {{ *n = i; return 0; }}\n\
             int cuDeviceGetAttribute(int *n, int which, int d) {{ *n = which == 75 ? {major} : 5; return 0; }}\n\
             int cuDeviceGetName(char *to, int n, int d) {{ to[0] = 'T'; to[1] = '0' + d; to[2] = 0; return 0; }}\n"
        );
        for function in &FUNCTIONS[6..] {
            if *function != lacking {
                c += &format!("int {function}(void) {{ return 999; }}\n");
            }
        }
        let base = std::env::temp_dir().join(format!("llamabi-{name}-{}", std::process::id()));
        let (source, library) = (base.with_extension("c"), base.with_extension("so"));
        std::fs::write(&source, c).unwrap();
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        std::fs::remove_file(source).unwrap();
        library
    }

    fn look(name: &str, numbers: [i32; 4], lacking: &str, index: usize) -> Result<Found, String> {
        let library = driver(name, numbers, lacking);
        let path = library.to_str().unwrap();
        let found = preflight(&KERNELS, &["/nonexistent/libcuda.so", path], index);
        std::fs::remove_file(&library).unwrap();
        found.map_err(|reason| Error::from(reason).to_string().replace(path, "LIB"))
    }

    #[test]
    fn every_reason_is_said_in_words() {
        let good = [0, 13_000, 2, 9];
        let found = look("good", good, "", 1).unwrap();
        let (arch, driver) = ((9, 5), 13_000);
        let name = "T1".into();
        assert_eq!(found, Found { name, arch, driver });
        for (name, numbers, lacking, index, text) in [
            (
                "stub",
                [34, 13_000, 2, 9],
                "",
                0,
                "LIB is not a driver: cuInit says that it is a stub",
            ),
            (
                "part",
                good,
                "cuLaunchKernel",
                0,
                "LIB is not a driver: it has no cuLaunchKernel",
            ),
            (
                "init",
                [999, 13_000, 2, 9],
                "",
                0,
                "the NVIDIA driver does not start: cuInit gives error 999",
            ),
            (
                "hidden",
                [100, 13_000, 2, 9],
                "",
                0,
                "the NVIDIA driver finds no GPU",
            ),
            (
                "none",
                [0, 13_000, 0, 9],
                "",
                0,
                "the NVIDIA driver finds no GPU",
            ),
            (
                "old",
                [0, 12_080, 2, 9],
                "",
                0,
                "the NVIDIA driver is too old: it offers CUDA 12.8, this build needs CUDA 13.0",
            ),
            (
                "volta",
                [0, 13_000, 2, 7],
                "",
                0,
                "T0 has compute capability 7.5, this build has kernels for 8.0 and newer",
            ),
        ] {
            let error = look(name, numbers, lacking, index).unwrap_err();
            assert_eq!(error, format!("device is CUDA: {text}"));
        }
        let error = look("index", good, "", 2).unwrap_err();
        assert_eq!(
            error,
            "device_index is 2, must be less than 2, the GPUs there are"
        );
        let error = preflight(&KERNELS, &["/nonexistent/libcuda.so"], 0).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("no NVIDIA driver: /nonexistent/libcuda.so: "),
            "{text}"
        );
    }

    /// A library without kernels has no use for a driver and does not open one.
    #[test]
    fn no_kernels_no_driver() {
        let images = Images {
            driver: 0,
            fatbins: &[],
        };
        assert_eq!(preflight(&images, &LIBRARIES, 0), Err(Reason::NoKernels));
    }
}
