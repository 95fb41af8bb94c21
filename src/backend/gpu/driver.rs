//! The NVIDIA driver: the functions of libcuda that this library calls. They are looked up when the
//! driver is opened. (U)
//!
//! Types, constants and signatures come from cudarc's bindings, which are generated from cuda.h;
//! the compiler compares the table below with them. What stays ours is how functions are called,
//! for three reasons. A result is a number here: in the bindings it is a Rust enum, and a number
//! that the enum does not list would be undefined behaviour. A missing function is a [`Reason`];
//! the bindings' own loader panics. Every error contains the name of its function.
#![allow(unsafe_code)]
#![allow(non_snake_case, reason = "the driver's names")]
#![allow(clippy::too_many_arguments, reason = "the driver's signatures")]

use super::reason::{Failed, Reason};
pub(super) use cudarc::driver::sys;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use sys::*;

/// File names of the driver's library. The driver installs the first; link-time stubs may have the
/// second name as well.
pub const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// A copy of nothing from one place on the device to another, to be filled in.
pub(super) const NO_COPY: CUDA_MEMCPY2D = CUDA_MEMCPY2D {
    srcXInBytes: 0,
    srcY: 0,
    srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
    srcHost: ptr::null(),
    srcDevice: 0,
    srcArray: ptr::null_mut(),
    srcPitch: 0,
    dstXInBytes: 0,
    dstY: 0,
    dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
    dstHost: ptr::null_mut(),
    dstDevice: 0,
    dstArray: ptr::null_mut(),
    dstPitch: 0,
    WidthInBytes: 0,
    Height: 0,
};

pub(super) type Outcome = Result<(), Failed>;

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        // The bindings have the same signatures. Their functions are never called.
        $(const _: unsafe fn($($type),*) -> CUresult = sys::$name;)*

        /// An opened driver.
        #[derive(Debug)]
        pub struct Driver {
            /// The library's file.
            pub(super) library: String,
            cuGetErrorName: ErrorName,
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        impl Driver {
            fn look_up(library: &str, handle: *mut c_void) -> Result<Driver, Reason> {
                let symbol = |name| symbol(library, handle, name);
                // SAFETY: the functions have these names, and the signatures that cuda.h gives
                // them.
                unsafe {
                    Ok(Driver {
                        library: library.into(),
                        $($name: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($type),*) -> u32,
                        >(symbol(stringify!($name))?),)*
                        cuGetErrorName: std::mem::transmute::<*mut c_void, ErrorName>(
                            symbol("cuGetErrorName")?,
                        ),
                    })
                }
            }

            $(
                /// See the driver's reference.
                ///
                /// # Safety
                /// As the reference says: handles are live, the function may write to the
                /// addresses, and the right context is current.
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
        pub(super) const FUNCTIONS: &[&str] = &[$(stringify!($name),)* "cuGetErrorName"];
    };
}

/// `cuGetErrorName`. It is asked about numbers that the bindings' enum may not list.
type ErrorName = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut CUdevice, index: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    cuDeviceGetP2PAttribute(value: *mut c_int, which: CUdevice_P2PAttribute, from: CUdevice, to: CUdevice);
    cuCtxEnablePeerAccess(context: CUcontext, flags: c_uint);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamQuery(stream: CUstream);
    cuStreamSynchronize(stream: CUstream);
    cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
    cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphUpload(exec: CUgraphExec, stream: CUstream);
    cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    cuGraphDestroy(graph: CUgraph);
    cuGraphExecDestroy(exec: CUgraphExec);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventQuery(event: CUevent);
    cuEventSynchronize(event: CUevent);
    cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize);
    cuMemFree_v2(at: CUdeviceptr);
    cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost(at: *mut c_void);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
    cuMemsetD8Async(at: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream);
    cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        n_options: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    );
    cuModuleUnload(module: CUmodule);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        function: CUfunction,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    cuTensorMapEncodeTiled(
        map: *mut CUtensorMap,
        data_type: CUtensorMapDataType,
        rank: c_uint,
        address: *mut c_void,
        dimensions: *const u64,
        strides: *const u64,
        box_dimensions: *const c_uint,
        element_strides: *const c_uint,
        interleave: CUtensorMapInterleave,
        swizzle: CUtensorMapSwizzle,
        promotion: CUtensorMapL2promotion,
        fill: CUtensorMapFloatOOBfill,
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
