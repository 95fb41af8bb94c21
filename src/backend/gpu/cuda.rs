//! A real GPU, through the driver's own interface (cudarc opens it at run time).
//!
//! The primary context is used, as other code in the process does; it is current only inside our
//! calls, so a host with CUDA code of its own notices nothing.
#![allow(unsafe_code)]

use super::device::{Device, Geometry, Rows};
use super::images::Images;
use super::preflight::{self, Found, Reason};
use crate::{Error, Result};
use cudarc::driver::sys::{self, CUresult};
use std::collections::HashMap;
use std::ffi::{CString, c_uint, c_void};
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::{Arc, Mutex};

/// Bytes of each of the two pinned buffers that copies to the device pass through: long enough that
/// a copy costs more than its start, short enough that the first one starts soon.
const STAGE: usize = 4 << 20;

/// What the driver said.
fn check(what: &str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = ptr::null();
    // SAFETY: writes the address of a constant, or fails.
    let known = unsafe { sys::cuGetErrorName(code, &mut name) } == CUresult::CUDA_SUCCESS;
    let name = if known && !name.is_null() {
        // SAFETY: the driver's own constant.
        unsafe { std::ffi::CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    } else {
        "an unnamed error".into()
    };
    Err(Error::Device(format!("{what}: {name} ({})", code as u32)))
}

/// A retained context.
struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

/// The context is current on this thread while this lives.
struct Current;

impl Context {
    fn enter(&self) -> Result<Current> {
        // SAFETY: retained until `drop`.
        check("cuCtxPushCurrent", unsafe {
            sys::cuCtxPushCurrent_v2(self.raw)
        })?;
        Ok(Current)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: undoes the push of `enter`, on the same thread (`Current` does not leave it).
        unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: undoes the retain of `Cuda::open`.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

// SAFETY: a context may be pushed on any thread (CUDA driver API, "Context Management").
unsafe impl Send for Context {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Context {}

/// Page-locked host memory.
struct Pinned {
    at: *mut u8,
    bytes: usize,
    context: Arc<Context>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned> {
        let _current = context.enter()?;
        let mut at = ptr::null_mut();
        // Flags 0: cached by the CPU. cudarc's own default is write-combined, which is slow to read.
        // SAFETY: the context is current; `at` outlives the call.
        let code = unsafe { sys::cuMemHostAlloc(&mut at, bytes.max(1), 0) };
        if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(Error::Refused {
                what: "page-locked memory for copies".into(),
                needed: bytes as u64,
            });
        }
        check("cuMemHostAlloc", code)?;
        let pinned = Pinned {
            at: at.cast(),
            bytes,
            context: context.clone(),
        };
        // SAFETY: just allocated; initialised here, so that slices of it are sound.
        unsafe { ptr::write_bytes(pinned.at, 0, bytes.max(1)) };
        Ok(pinned)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: allocated in `new`. The driver waits for copies that use it.
            unsafe { sys::cuMemFreeHost(self.at.cast()) };
        }
    }
}

/// Floats in page-locked host memory.
pub struct Floats(Pinned);

impl Deref for Floats {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: page-aligned, initialised in `Pinned::new`, borrowed through `self`; a copy into it
        // is waited for before `Device::read` returns.
        unsafe { std::slice::from_raw_parts(self.0.at.cast(), self.0.bytes / 4) }
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.at.cast(), self.0.bytes / 4) }
    }
}

/// A pinned buffer and an event that says when the copy out of it is done.
struct Stage {
    memory: Pinned,
    done: sys::CUevent,
}

/// Two of them, used in turn: one is filled while the other is copied.
struct Staging {
    stages: [Stage; 2],
    next: usize,
}

// SAFETY: events may be used from any thread whose current context is theirs.
unsafe impl Send for Staging {}

/// One NVIDIA GPU.
pub struct Cuda {
    context: Arc<Context>,
    stream: sys::CUstream,
    modules: Vec<sys::CUmodule>,
    kernels: HashMap<String, sys::CUfunction>,
    staging: Option<Mutex<Staging>>,
    found: Found,
}

// SAFETY: streams, modules and functions may be used from any thread whose current context is theirs;
// the maps do not change after `open`.
unsafe impl Send for Cuda {}
// SAFETY: as above; the driver's functions may be called from several threads at a time.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// GPU `index` with these kernels, each loaded once and for all.
    pub fn open(images: &Images, index: usize, kernels: &[&str]) -> Result<Cuda> {
        let found = preflight::preflight(images, &preflight::LIBRARIES, index)?;
        let mut device = 0;
        // SAFETY: preflight has started the driver and seen that this device is there.
        check("cuDeviceGet", unsafe {
            sys::cuDeviceGet(&mut device, index as i32)
        })?;
        let mut raw = ptr::null_mut();
        // SAFETY: as above; released when the last `Arc` goes.
        check("cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut raw, device)
        })?;
        let context = Arc::new(Context { device, raw });
        let _current = context.enter()?;
        let mut stream = ptr::null_mut();
        let non_blocking = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the context is current.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut stream, non_blocking)
        })?;
        // From here on `drop` gives back whatever there is.
        let mut cuda = Cuda {
            context: context.clone(),
            stream,
            modules: Vec::new(),
            kernels: HashMap::new(),
            staging: None,
            found,
        };
        for (file, fatbin) in images.fatbins {
            cuda.load(file, fatbin, images.driver)?;
        }
        let shared = cuda.attribute(
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?;
        for name in kernels {
            cuda.find(name, shared)?;
        }
        let stage = || -> Result<Stage> {
            let memory = Pinned::new(&context, STAGE)?;
            let mut done = ptr::null_mut();
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
            // SAFETY: the context is current.
            check("cuEventCreate", unsafe {
                sys::cuEventCreate(&mut done, flags)
            })?;
            Ok(Stage { memory, done })
        };
        let stages = [stage()?, stage()?];
        cuda.staging = Some(Mutex::new(Staging { stages, next: 0 }));
        Ok(cuda)
    }

    fn attribute(&self, which: sys::CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the device is there since `open`.
        check("cuDeviceGetAttribute", unsafe {
            sys::cuDeviceGetAttribute(&mut value, which, self.context.device)
        })?;
        Ok(value)
    }

    /// Load one image; PTX in it may be compiled by the driver, whose words are kept.
    fn load(&mut self, file: &str, fatbin: &[u8], need: i32) -> Result<()> {
        // The driver wants eight-byte alignment.
        let mut image = vec![0u64; fatbin.len().div_ceil(8) + 1];
        for (to, from) in image.iter_mut().zip(fatbin.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..from.len()].copy_from_slice(from);
            *to = u64::from_ne_bytes(bytes);
        }
        let mut log = [0u8; 2048];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values: [*mut c_void; 2] = [
            log.as_mut_ptr().cast(),
            ptr::without_provenance_mut(log.len() - 1),
        ];
        let mut module = ptr::null_mut();
        // SAFETY: `image` is a whole fatbin (its header has its length) and a zero behind it; the
        // options are two, and all of it outlives the call.
        let code = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                image.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        match code {
            CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => Err(Reason::NoImage {
                name: self.found.name.clone(),
                have: self.found.arch,
                need: preflight::MIN_ARCH,
            }
            .into()),
            CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => Err(Reason::DriverTooOld {
                have: self.found.driver,
                need,
            }
            .into()),
            code => {
                let end = log.iter().position(|&b| b == 0).unwrap_or(0);
                let words = String::from_utf8_lossy(&log[..end]);
                check(&format!("loading the kernels of {file} ({words})"), code)?;
                self.modules.push(module);
                Ok(())
            }
        }
    }

    /// Look a kernel up and let it have as much shared memory as the device gives.
    fn find(&mut self, name: &str, shared: i32) -> Result<()> {
        let c_name = CString::new(name).unwrap_or_default();
        for &module in &self.modules {
            let mut function = ptr::null_mut();
            // SAFETY: the module is loaded, the name NUL-terminated.
            let code = unsafe { sys::cuModuleGetFunction(&mut function, module, c_name.as_ptr()) };
            if code == CUresult::CUDA_ERROR_NOT_FOUND {
                continue;
            }
            check(name, code)?;
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just found.
            check(name, unsafe {
                sys::cuFuncSetAttribute(function, most, shared)
            })?;
            self.kernels.insert(name.into(), function);
            return Ok(());
        }
        Err(Error::Internal(format!(
            "this build's kernels lack `{name}`"
        )))
    }

    /// A piece of at most [`STAGE`] bytes on its way through a pinned buffer.
    fn stage(&self, to: Rows, from: &[u8]) -> Result<()> {
        let Some(staging) = &self.staging else {
            return Err(Error::Internal("a copy before the device is open".into()));
        };
        let mut staging = staging.lock().unwrap_or_else(|e| e.into_inner());
        let next = staging.next;
        staging.next = 1 - next;
        let stage = &mut staging.stages[next];
        // SAFETY: an event of this context; one that was never recorded is done.
        check("cuEventSynchronize", unsafe {
            sys::cuEventSynchronize(stage.done)
        })?;
        // SAFETY: the copy that used the buffer is done; `from` is at most STAGE bytes (`write`).
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), stage.memory.at, from.len()) };
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: stage.memory.at.cast(),
            srcDevice: 0,
            srcArray: ptr::null_mut(),
            srcPitch: to.width,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: ptr::null_mut(),
            dstDevice: to.at,
            dstArray: ptr::null_mut(),
            dstPitch: to.pitch,
            WidthInBytes: to.width,
            Height: from.len() / to.width,
        };
        // SAFETY: the rows lie in live memory (the caller of `write`), the source in the stage, which is
        // not touched before `done`.
        unsafe {
            if to.width == from.len() {
                let bytes = from.len();
                let code =
                    sys::cuMemcpyHtoDAsync_v2(to.at, stage.memory.at.cast(), bytes, self.stream);
                check("cuMemcpyHtoDAsync", code)?;
            } else {
                check(
                    "cuMemcpy2DAsync",
                    sys::cuMemcpy2DAsync_v2(&copy, self.stream),
                )?;
            }
            check("cuEventRecord", sys::cuEventRecord(stage.done, self.stream))
        }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else {
            return;
        };
        // SAFETY: all of it was made in `open` in this context and is used by nobody else now. What
        // fails after a device error fails here too, and nothing can be done about it.
        unsafe {
            sys::cuStreamSynchronize(self.stream);
            if let Some(staging) = self.staging.take() {
                let staging = staging.into_inner().unwrap_or_else(|e| e.into_inner());
                for stage in &staging.stages {
                    sys::cuEventDestroy_v2(stage.done);
                }
            }
            for &module in &self.modules {
                sys::cuModuleUnload(module);
            }
            sys::cuStreamDestroy_v2(self.stream);
        }
    }
}

// SAFETY: addresses are the driver's; everything is done in one stream, in order.
unsafe impl Device for Cuda {
    type Host = Floats;

    fn name(&self) -> String {
        let Found { name, arch, driver } = &self.found;
        let (major, minor) = (driver / 1000, driver % 1000 / 10);
        format!(
            "{name}, compute capability {}.{}, CUDA {major}.{minor} driver",
            arch.0, arch.1
        )
    }

    fn available(&self) -> Result<u64> {
        let _current = self.context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current.
        check("cuMemGetInfo", unsafe {
            sys::cuMemGetInfo_v2(&mut free, &mut total)
        })?;
        Ok(free as u64)
    }

    fn allocate(&self, what: &str, bytes: usize) -> Result<u64> {
        let available = self.available()?;
        let _current = self.context.enter()?;
        let mut at = 0;
        // SAFETY: the context is current.
        let code = unsafe { sys::cuMemAlloc_v2(&mut at, bytes) };
        if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(Error::DeviceMemory {
                what: what.into(),
                needed: bytes as u64,
                available,
            });
        }
        check("cuMemAlloc", code)?;
        Ok(at)
    }

    unsafe fn free(&self, at: u64) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: by this function's contract. The driver waits for work that uses it.
            unsafe { sys::cuMemFree_v2(at) };
        }
    }

    fn host(&self, n: usize) -> Result<Floats> {
        Pinned::new(&self.context, n.saturating_mul(4)).map(Floats)
    }

    unsafe fn clear(&self, at: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: by this function's contract.
        check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(at, 0, bytes, self.stream)
        })
    }

    unsafe fn write(&self, to: Rows, from: &[u8]) -> Result<()> {
        let _current = self.context.enter()?;
        let piece = if to.width == to.pitch || to.width == from.len() {
            // One stretch of memory, cut anywhere.
            for (i, bytes) in from.chunks(STAGE).enumerate() {
                let at = to.at + (i * STAGE) as u64;
                let (width, pitch) = (bytes.len(), bytes.len());
                self.stage(Rows { at, width, pitch }, bytes)?;
            }
            return Ok(());
        } else {
            (STAGE / to.width).max(1) * to.width
        };
        for (i, rows) in from.chunks(piece).enumerate() {
            let at = to.at + (i * (piece / to.width) * to.pitch) as u64;
            if piece <= STAGE {
                self.stage(Rows { at, ..to }, rows)?;
            } else {
                // SAFETY: one row of those that the caller vouches for.
                unsafe {
                    self.write(
                        Rows {
                            at,
                            width: rows.len(),
                            pitch: rows.len(),
                        },
                        rows,
                    )
                }?;
            }
        }
        Ok(())
    }

    unsafe fn copy(&self, to: Rows, from: u64, rows: usize) -> Result<()> {
        let _current = self.context.enter()?;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: ptr::null(),
            srcDevice: from,
            srcArray: ptr::null_mut(),
            srcPitch: to.pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: ptr::null_mut(),
            dstDevice: to.at,
            dstArray: ptr::null_mut(),
            dstPitch: to.pitch,
            WidthInBytes: to.width,
            Height: rows,
        };
        // The 2D copy takes pitches up to a limit; layers of a large pool lie farther apart.
        let limit = self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH)?;
        // SAFETY: by this function's contract.
        unsafe {
            if to.pitch <= limit as usize {
                return check(
                    "cuMemcpy2DAsync",
                    sys::cuMemcpy2DAsync_v2(&copy, self.stream),
                );
            }
            for row in 0..rows {
                let row = sys::CUDA_MEMCPY2D {
                    srcDevice: from + (row * to.pitch) as u64,
                    srcPitch: to.width,
                    dstDevice: to.at + (row * to.pitch) as u64,
                    dstPitch: to.width,
                    Height: 1,
                    ..copy
                };
                check(
                    "cuMemcpy2DAsync",
                    sys::cuMemcpy2DAsync_v2(&row, self.stream),
                )?;
            }
        }
        Ok(())
    }

    unsafe fn read(&self, to: &mut Floats, from: u64, n: usize) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: both sizes are by this function's contract; `to` stays borrowed until the copy is
        // done.
        unsafe {
            let code = sys::cuMemcpyDtoHAsync_v2(to.0.at.cast(), from, 4 * n, self.stream);
            check("cuMemcpyDtoHAsync", code)?;
            check("the step", sys::cuStreamSynchronize(self.stream))
        }
    }

    unsafe fn launch(&self, kernel: &str, geometry: Geometry, params: &[u8]) -> Result<()> {
        let Some(&function) = self.kernels.get(kernel) else {
            return Err(Error::Internal(format!("no kernel `{kernel}` is loaded")));
        };
        let _current = self.context.enter()?;
        let mut argument: *mut c_void = params.as_ptr().cast_mut().cast();
        let Geometry {
            grid: [gx, gy, gz],
            block: [bx, by, bz],
            shared,
        } = geometry;
        // SAFETY: the kernel has one argument, whose bytes are copied during the call; what they point
        // to is by this function's contract.
        let code = unsafe {
            sys::cuLaunchKernel(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared,
                self.stream,
                &mut argument,
                ptr::null_mut(),
            )
        };
        check(kernel, code)
    }

    fn synchronize(&self) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: our own stream.
        check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(self.stream)
        })
    }
}
