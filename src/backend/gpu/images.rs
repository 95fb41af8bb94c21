//! The compiled kernels: either those that were compiled into this library, or those in a folder.
//!
//! Such a folder has a fatbin for each file of `kernels/`, a file `driver` with the number that
//! [`Images::driver`] explains, and the `params.h` with which the kernels were compiled. This
//! `params.h` must be the one from which this library was built, because it is the whole contract
//! between host and kernels. `kernels/pack.sh` makes such a folder. With it, a library that was
//! built without nvcc gets kernels, and kernels can be changed, or compiled for a profiler, without
//! building the library again.

use super::reason::Reason;
use std::borrow::Cow;
use std::path::Path;

/// Environment variable with the path of a folder of kernels to use instead of the library's own.
pub const KERNELS_VARIABLE: &str = "LLAMABI_KERNELS";

const PARAMS: &str = include_str!("../../../kernels/params.h");

/// Compiled kernels.
#[derive(Clone, Debug)]
pub struct Images {
    /// The oldest version of the driver interface that can load them: 1000 major + 10 minor. 0 if
    /// there are no kernels.
    pub driver: i32,
    /// For each file of `kernels/`, its name and a fatbin. A fatbin has machine code for several
    /// architectures, and PTX for newer ones; the driver chooses.
    pub fatbins: Vec<(Cow<'static, str>, Cow<'static, [u8]>)>,
}

impl Images {
    /// The kernels in the folder that [`KERNELS_VARIABLE`] names; if it is not set, the library's
    /// own.
    pub fn choose() -> Result<Images, Reason> {
        // An empty variable counts as not set, because some shells and service files cannot unset
        // one.
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
