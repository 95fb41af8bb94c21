//! Finds out whether there is a GPU that this build can use, and if not, the reason. (U)
#![allow(unsafe_code)]

use super::driver::Driver;
use super::driver::sys::{CUdevice_attribute as Attribute, CUresult};
use super::images::{BUILT, Images};
use super::reason::{Failed, Reason};
use std::ffi::{CStr, c_char, c_int};

/// The oldest driver interface that has every function that `cuda` calls.
const MIN_DRIVER: i32 = 12_020;

/// The oldest architecture for which the kernels are written.
pub const MIN_ARCH: (i32, i32) = (8, 0);

/// A GPU that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub arch: (i32, i32),
    /// The driver's version, as `cuDriverGetVersion` returns it.
    pub driver: i32,
}

/// Looks for GPU `index` with the driver from the first of `libraries` that can be opened. If
/// `images` has no kernels, it opens no driver.
pub fn preflight(
    images: &Images,
    libraries: &[&str],
    index: usize,
) -> Result<(Driver, Found), Reason> {
    if images.fatbins.is_empty() {
        return Err(Reason::NoKernels(BUILT));
    }
    let driver = Driver::open(libraries)?;
    let stub = |detail: String| Reason::Stub {
        library: driver.library.clone(),
        detail,
    };
    // SAFETY: no pointers.
    if let Err(failed) = unsafe { driver.cuInit(0) } {
        return Err(match failed.code {
            code if code == CUresult::CUDA_ERROR_STUB_LIBRARY as u32 => {
                stub("cuInit says that it is a stub".into())
            }
            code if code == CUresult::CUDA_ERROR_NO_DEVICE as u32 => Reason::NoDevice,
            _ => Reason::InitFailed(failed),
        });
    }
    let (mut have, mut count) = (0, 0);
    // SAFETY: both outlive the calls.
    unsafe { driver.cuDriverGetVersion(&mut have) }.map_err(|failed| stub(failed.to_string()))?;
    let need = images.driver.max(MIN_DRIVER);
    if have < need {
        return Err(Reason::DriverTooOld { have, need });
    }
    // SAFETY: as above.
    unsafe { driver.cuDeviceGetCount(&mut count) }.map_err(|failed| stub(failed.to_string()))?;
    if count <= 0 {
        return Err(Reason::NoDevice);
    }
    let count = count as usize;
    if index >= count {
        return Err(Reason::NoSuchDevice { index, count });
    }
    let (name, arch) =
        describe(&driver, index as c_int).map_err(|failed| stub(failed.to_string()))?;
    if arch < MIN_ARCH {
        return Err(Reason::NoImage {
            name,
            have: arch,
            need: MIN_ARCH,
        });
    }
    let found = Found {
        name,
        arch,
        driver: have,
    };
    Ok((driver, found))
}

/// Name and compute capability of a device.
fn describe(driver: &Driver, index: c_int) -> Result<(String, (i32, i32)), Failed> {
    let (mut device, mut capability, mut text) = (0, [0; 2], [0 as c_char; 128]);
    // SAFETY: what is written to outlives the calls. The buffer has one byte more than the length
    // given, so its last byte stays 0 whatever is written.
    unsafe {
        driver.cuDeviceGet(&mut device, index)?;
        let which = [
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        ];
        for (value, which) in capability.iter_mut().zip(which) {
            driver.cuDeviceGetAttribute(value, which, device)?;
        }
        driver.cuDeviceGetName(text.as_mut_ptr(), text.len() as c_int - 1, device)?;
    }
    // SAFETY: NUL-terminated, as just said.
    let name = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok((
        name.to_string_lossy().into_owned(),
        (capability[0], capability[1]),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::backend::gpu::driver::{FUNCTIONS, LIBRARIES};
    use std::path::PathBuf;
    use std::process::Command;

    fn kernels() -> Images {
        Images {
            driver: 13_000,
            fatbins: vec![("none".into(), Default::default())],
        }
    }

    /// Compiles a driver of a few lines of C, which has every function that is looked up except
    /// `lacking`.
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
        let found = preflight(&kernels(), &["/nonexistent/libcuda.so", path], index);
        std::fs::remove_file(&library).unwrap();
        found
            .map(|(_, found)| found)
            .map_err(|reason| Error::from(reason).to_string().replace(path, "LIB"))
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
                "cuLaunchKernelEx",
                0,
                "LIB is not a driver: it has no cuLaunchKernelEx",
            ),
            (
                "init",
                [999, 13_000, 2, 9],
                "",
                0,
                "the NVIDIA driver does not start: cuInit: an error without a name (999)",
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
        let error = preflight(&kernels(), &["/nonexistent/libcuda.so"], 0).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("no NVIDIA driver: /nonexistent/libcuda.so: "),
            "{text}"
        );
    }

    /// A library without kernels needs no driver and does not open one.
    #[test]
    fn no_kernels_no_driver() {
        let images = Images {
            driver: 0,
            fatbins: Vec::new(),
        };
        let error = preflight(&images, &LIBRARIES, 0).unwrap_err();
        assert_eq!(error, Reason::NoKernels(BUILT));
    }
}
