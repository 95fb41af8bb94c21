//! The compiled kernels: those that nvcc made for this library, or others in a folder.
//!
//! A folder has a fatbin for each file of `kernels/`, a file `driver` with the number that
//! [`Images::driver`] explains, and the `params.h` that the kernels were compiled with. It must be
//! the one that this library was built from, because it is all that host and kernels know of each
//! other. `kernels/pack.sh` makes such a folder. It gives kernels to a library that was built
//! without nvcc, and it lets kernels be changed, or compiled for a profiler, without building the
//! library.

use super::reason::Reason;
use std::borrow::Cow;
use std::path::Path;

/// Environment variable with the path of a folder of kernels to use instead of the library's own.
pub const KERNELS_VARIABLE: &str = "LLAMABI_KERNELS";

const PARAMS: &str = include_str!("../../../kernels/params.h");

/// Compiled kernels.
#[derive(Clone, Debug)]
pub struct Images {
    /// The driver interface that can load them: 1000 major + 10 minor. 0 if there are no kernels.
    pub driver: i32,
    /// One for each file of `kernels/`: its name and a fatbin with machine code for several
    /// architectures and PTX for newer ones, from which the driver chooses.
    pub fatbins: Vec<(Cow<'static, str>, Cow<'static, [u8]>)>,
}

impl Images {
    /// The kernels that [`KERNELS_VARIABLE`] names; without it, the library's own.
    pub fn choose() -> Result<Images, Reason> {
        // Some shells and service files unset a variable by setting it to nothing.
        match std::env::var_os(KERNELS_VARIABLE).filter(|dir| !dir.is_empty()) {
            None => Ok(Self::embedded()),
            Some(dir) => Self::from_folder(dir.as_ref()),
        }
    }

    /// The library's own kernels.
    pub fn embedded() -> Images {
        let (driver, fatbins) = EMBEDDED;
        let borrow = |&(name, bytes): &(&'static str, &'static [u8])| (name.into(), bytes.into());
        Images {
            driver,
            fatbins: fatbins.iter().map(borrow).collect(),
        }
    }

    /// The kernels of a folder.
    pub fn from_folder(dir: &Path) -> Result<Images, Reason> {
        let unusable = |path: &Path, detail: &str| {
            Reason::Kernels(format!("{KERNELS_VARIABLE}: {}: {detail}", path.display()))
        };
        let read = |path: &Path| std::fs::read(path).map_err(|e| unusable(path, &e.to_string()));
        let params = dir.join("params.h");
        if read(&params)? != PARAMS.as_bytes() {
            return Err(unusable(
                &params,
                "not the one that this library was built from",
            ));
        }
        let driver = dir.join("driver");
        let number = String::from_utf8_lossy(&read(&driver)?).trim().parse();
        let number = number.map_err(|_| unusable(&driver, "not a number"))?;
        let mut fatbins = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(|e| unusable(dir, &e.to_string()))? {
            let path = entry.map_err(|e| unusable(dir, &e.to_string()))?.path();
            if path.extension().is_some_and(|e| e == "fatbin") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                fatbins.push((name.into_owned().into(), read(&path)?.into()));
            }
        }
        fatbins.sort();
        if fatbins.is_empty() {
            return Err(unusable(dir, "there is no .fatbin"));
        }
        Ok(Images {
            driver: number,
            fatbins,
        })
    }
}

include!(concat!(env!("OUT_DIR"), "/images.rs"));
