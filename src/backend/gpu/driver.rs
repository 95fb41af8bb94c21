//! The NVIDIA driver: the functions of libcuda that this library calls. They are looked up when the
//! driver is opened. (U)
//!
//! We have our own table instead of a crate's for three reasons. A result is a number here: in a
//! Rust enum, a number that the enum does not list would be undefined behaviour. A missing function
//! is a [`Reason`] and not a panic. Every error contains the name of its function. Signatures and
//! numbers come from cuda.h; the tests' stand-in driver, which has the same, is compiled against
//! that header (`kernels/ptxas.sh`).
#![allow(unsafe_code)]
#![allow(non_snake_case, reason = "the driver's names")]
#![allow(clippy::too_many_arguments, reason = "the driver's signatures")]

use super::device::TensorMap;
use super::reason::{Failed, Reason};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

/// File names of the driver's library. The driver installs the first; link-time stubs may have the
/// second name as well.
pub const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// CUcontext, CUstream, CUevent, CUmodule, CUfunction, CUgraph, CUgraphExec.
pub(super) type Handle = *mut c_void;

pub(super) const INVALID_VALUE: u32 = 1;
pub(super) const OUT_OF_MEMORY: u32 = 2;
pub(super) const STUB_LIBRARY: u32 = 34;
pub(super) const NO_DEVICE: u32 = 100;
pub(super) const NO_BINARY_FOR_GPU: u32 = 209;
pub(super) const UNSUPPORTED_PTX_VERSION: u32 = 222;
pub(super) const NOT_FOUND: u32 = 500;

pub(super) const MAX_PITCH: c_int = 11;
pub(super) const MULTIPROCESSORS: c_int = 16;
pub(super) const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];
pub(super) const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_int = 97;
pub(super) const FUNC_SHARED_SIZE_BYTES: c_int = 1;
pub(super) const FUNC_PTX_VERSION: c_int = 5;
pub(super) const FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
pub(super) const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(super) const JIT_ERROR_LOG_BUFFER: c_uint = 5;
pub(super) const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;
pub(super) const CAPTURE_THREAD_LOCAL: c_uint = 1;
pub(super) const MEMORY_HOST: c_uint = 1;
pub(super) const MEMORY_DEVICE: c_uint = 2;
pub(super) const TENSOR_MAP_UINT16: c_uint = 1;
pub(super) const TENSOR_MAP_INTERLEAVE_NONE: c_uint = 0;
pub(super) const TENSOR_MAP_SWIZZLE_128B: c_uint = 3;
pub(super) const TENSOR_MAP_L2_PROMOTION_256B: c_uint = 3;
pub(super) const TENSOR_MAP_FILL_ZEROS: c_uint = 0;

/// One side of a [`Copy2d`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Side {
    pub x: usize,
    pub y: usize,
    /// [`MEMORY_HOST`] or [`MEMORY_DEVICE`].
    pub memory: c_uint,
    pub host: *const c_void,
    pub device: u64,
    pub array: Handle,
    pub pitch: usize,
}

/// CUDA_MEMCPY2D.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Copy2d {
    pub from: Side,
    pub to: Side,
    pub width: usize,
    pub height: usize,
}

/// CUlaunchAttribute, for attributes whose value is a number.
#[repr(C)]
pub(super) struct LaunchAttribute {
    pub id: c_uint,
    pub padding: c_uint,
    pub value: [c_int; 16],
}

/// CUlaunchConfig.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub stream: Handle,
    pub attributes: *mut LaunchAttribute,
    pub n_attributes: c_uint,
}

pub(super) type Outcome = Result<(), Failed>;

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// An opened driver.
        #[derive(Debug)]
        pub struct Driver {
            /// The library's file.
            pub(super) library: String,
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        impl Driver {
            fn look_up(library: &str, handle: *mut c_void) -> Result<Driver, Reason> {
                Ok(Driver {
                    library: library.into(),
                    $($name: {
                        let symbol = symbol(library, handle, stringify!($name))?;
                        // SAFETY: the function of this name, with the signature that cuda.h gives
                        // it.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) -> u32,
                            >(symbol)
                        }
                    },)*
                })
            }

            $(
                /// See the driver's reference.
                ///
                /// # Safety
                /// As the reference says: handles are live, the function may write to the
                /// addresses, and the right context is current.
                #[allow(dead_code, reason = "the name of an error is not asked for this way")]
                pub(super) unsafe fn $name(&self, $($argument: $type),*) -> Outcome {
                    // SAFETY: the caller's contract.
                    match unsafe { (self.$name)($($argument),*) } {
                        0 => Ok(()),
                        code => Err(self.failed(stringify!($name), code)),
                    }
                }
            )*
        }

        /// The names of all functions that are looked up.
        #[cfg(test)]
        pub(super) const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut c_int, index: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int);
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuCtxPushCurrent_v2(context: Handle);
    cuCtxPopCurrent_v2(context: *mut Handle);
    cuGetErrorName(code: u32, name: *mut *const c_char);
    cuStreamCreate(stream: *mut Handle, flags: c_uint);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamSynchronize(stream: Handle);
    cuStreamBeginCapture_v2(stream: Handle, mode: c_uint);
    cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64);
    cuGraphUpload(exec: Handle, stream: Handle);
    cuGraphLaunch(exec: Handle, stream: Handle);
    cuGraphDestroy(graph: Handle);
    cuGraphExecDestroy(exec: Handle);
    cuEventCreate(event: *mut Handle, flags: c_uint);
    cuEventDestroy_v2(event: Handle);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventSynchronize(event: Handle);
    cuMemAlloc_v2(at: *mut u64, bytes: usize);
    cuMemFree_v2(at: u64);
    cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost(at: *mut c_void);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle);
    cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: Handle);
    cuMemsetD8Async(at: u64, byte: u8, bytes: usize, stream: Handle);
    cuModuleLoadDataEx(
        module: *mut Handle,
        image: *const c_void,
        n_options: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
    );
    cuModuleUnload(module: Handle);
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Handle);
    cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int);
    cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: Handle,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    cuTensorMapEncodeTiled(
        map: *mut TensorMap,
        data_type: c_uint,
        rank: c_uint,
        address: *mut c_void,
        dimensions: *const u64,
        strides: *const u64,
        box_dimensions: *const c_uint,
        element_strides: *const c_uint,
        interleave: c_uint,
        swizzle: c_uint,
        promotion: c_uint,
        fill: c_uint,
    );
}

fn symbol(library: &str, handle: *mut c_void, name: &str) -> Result<*mut c_void, Reason> {
    let c_name = CString::new(name).unwrap_or_default();
    // SAFETY: the handle is never closed.
    let symbol = unsafe { libc::dlsym(handle, c_name.as_ptr()) };
    if symbol.is_null() {
        return Err(Reason::Stub {
            library: library.into(),
            detail: format!("it has no {name}"),
        });
    }
    Ok(symbol)
}

impl Driver {
    /// Opens the first of `libraries` that can be opened. The library is never closed, because a
    /// driver does not survive this.
    ///
    /// # Errors
    /// [`Reason::NoDriver`] with the loader's messages, [`Reason::Stub`] if a function is missing.
    pub fn open(libraries: &[&str]) -> Result<Driver, Reason> {
        let mut words = Vec::new();
        for &library in libraries {
            let c_name = CString::new(library).unwrap_or_default();
            // SAFETY: opening a driver runs its initialisers, which is what a driver is for.
            let handle =
                unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Driver::look_up(library, handle);
            }
            // SAFETY: after a failed dlopen: NULL or a string that lives until the next call here.
            let text = unsafe { libc::dlerror() };
            if !text.is_null() {
                // SAFETY: as above.
                let text = unsafe { CStr::from_ptr(text) };
                words.push(text.to_string_lossy().into_owned());
            }
        }
        Err(Reason::NoDriver(words.join("; ")))
    }

    fn failed(&self, function: &'static str, code: u32) -> Failed {
        let mut name = std::ptr::null();
        // SAFETY: writes the address of a constant, or fails.
        let known = unsafe { (self.cuGetErrorName)(code, &mut name) } == 0 && !name.is_null();
        let name = known.then(|| {
            // SAFETY: the driver's own constant, as it has just said.
            let name = unsafe { CStr::from_ptr(name) };
            name.to_string_lossy().into_owned()
        });
        Failed {
            function,
            code,
            name,
        }
    }
}
