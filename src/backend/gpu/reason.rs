//! The reasons why a GPU cannot be used, from the driver, the kernels and the search for a device.

use crate::Error;
use std::fmt;

/// A call that the driver refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The function.
    pub function: &'static str,
    /// Its CUresult.
    pub code: u32,
    /// The driver's name for it, if it has one.
    pub name: Option<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("an error without a name");
        write!(f, "{}: {name} ({})", self.function, self.code)
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        Error::Device(failed.to_string())
    }
}

/// Why there is no usable GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// This library was built without kernels, and no others are named.
    #[error("this library was {0}")]
    NoKernels(&'static str),
    /// The kernels cannot be used.
    #[error("the GPU kernels cannot be used: {0}")]
    Kernels(String),
    /// The driver's library cannot be opened.
    #[error("no NVIDIA driver: {0}")]
    NoDriver(String),
    /// The library that was found is not a driver: for example, it is the toolkit's link-time stub.
    #[error("{library} is not a driver: {detail}")]
    Stub {
        /// The file.
        library: String,
        /// How this was noticed.
        detail: String,
    },
    /// The driver exists but refuses to start.
    #[error("the NVIDIA driver does not start: {0}")]
    InitFailed(Failed),
    /// The driver finds no GPU (or CUDA_VISIBLE_DEVICES hides them all).
    #[error("the NVIDIA driver finds no GPU")]
    NoDevice,
    /// The driver cannot load what this build's nvcc made, or it lacks functions.
    #[error(
        "the NVIDIA driver is too old: it offers CUDA {}, this build needs CUDA {}",
        version(*have),
        version(*need)
    )]
    DriverTooOld {
        /// The version of the driver, as `cuDriverGetVersion` returns it: 1000 major + 10 minor.
        have: i32,
        /// The version that this build needs, in the same form.
        need: i32,
    },
    /// The GPU is older than the kernels.
    #[error(
        "{name} has compute capability {}.{}, this build has kernels for {}.{} and newer",
        have.0, have.1, need.0, need.1
    )]
    NoImage {
        /// The GPU.
        name: String,
        /// Its compute capability.
        have: (i32, i32),
        /// The lowest compute capability for which there are kernels.
        need: (i32, i32),
    },
    /// `device_index` names a GPU that does not exist.
    #[error("device_index is {index}, the driver finds {count} GPUs")]
    NoSuchDevice {
        /// The index that was asked for.
        index: usize,
        /// The number of GPUs.
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
