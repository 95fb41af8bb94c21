//! The kernels on a GPU. When the GPU is opened, all images are loaded and all kernels looked up.
//! (U)
#![allow(unsafe_code)]

use super::context::{Context, Owned};
use crate::backend::gpu::driver::Driver;
use crate::backend::gpu::driver::sys::{
    CUdevice_attribute, CUfunction, CUfunction_attribute as Attribute, CUjit_option, CUmod_st,
    CUresult, CUshared_carveout,
};
use crate::backend::gpu::images::Images;
use crate::backend::gpu::kernels::Kernel;
use crate::backend::gpu::params::GPU_HOPPER_QUARTER_SHARED;
use crate::backend::gpu::preflight::{Found, MIN_ARCH};
use crate::backend::gpu::reason::Reason;
use crate::{Error, Result, reserve};
use std::cmp::Reverse;
use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;

/// The functions of all kernels, in the order of `KERNELS`. They live as long as the modules.
pub(super) struct Modules {
    functions: Vec<Option<CUfunction>>,
    /// Whether the kernels for compute capability 9.0 exist here, and the GPU has the shared memory
    /// that they take beside their own.
    pub hopper: bool,
    /// The virtual architecture of the oldest of them, as 10 major + minor.
    pub ptx: c_int,
    /// Whether all kernels were compiled for 9.0 or newer. In code for older architectures, a
    /// kernel cannot wait for the previous launch.
    pub programmatic: bool,
    /// Whether the kernels that may start early prefer the same carve-out.
    pub carved: bool,
    /// Bytes of dynamic shared memory that a block of any kernel may have, but for those for
    /// compute capability 9.0.
    pub shared: u32,
    _modules: Vec<Owned<CUmod_st>>,
}

// SAFETY: functions may be used from any thread on which their context is current; nothing changes
// here.
unsafe impl Send for Modules {}
// SAFETY: as above.
unsafe impl Sync for Modules {}

impl Modules {
    /// Loads the images and looks the kernels up. The context must be current.
    /// `carve`: whether the kernels that may start early all prefer the same carve-out.
    pub fn load(
        context: &Arc<Context>,
        images: &Images,
        found: &Found,
        carve: bool,
    ) -> Result<Modules> {
        let mut modules = Vec::new();
        for (file, image) in &images.fatbins {
            let module = module(context, file, image, images.driver, found)?;
            modules.push((file.as_ref(), module));
        }
        let shared = context
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let find = |kernel| function(context, &modules, kernel, shared);
        let found = Kernel::all().map(find).collect::<Result<Vec<_>>>()?;
        let of_all = found.iter().zip(Kernel::all());
        let allowed = of_all.filter_map(|(f, kernel)| f.filter(|_| !kernel.is_hopper()));
        let allowed = allowed.map(|(_, shared)| shared).min().unwrap_or(0);
        let functions: Vec<_> = found.iter().map(|f| f.map(|(f, _)| f)).collect();
        let early: Vec<_> = functions
            .iter()
            .zip(Kernel::all())
            .filter_map(|(function, kernel)| function.filter(|_| kernel.starts_early()))
            .collect();
        let carved = carve && prefer_shared(context, &early)?;
        let ptx = compiled_for(context, &functions)?;
        Ok(Modules {
            ptx,
            programmatic: ptx >= 90,
            carved,
            shared: allowed.max(0) as u32,
            hopper: functions.iter().all(Option::is_some),
            functions,
            _modules: modules.into_iter().map(|(_, module)| module).collect(),
        })
    }

    pub fn function(&self, kernel: Kernel) -> Option<CUfunction> {
        self.functions[kernel.index()]
    }
}

/// Loads one image. The driver may compile the PTX in it; if this fails, the error contains the
/// driver's message.
fn module(
    context: &Arc<Context>,
    file: &str,
    image: &[u8],
    need: i32,
    found: &Found,
) -> Result<Owned<CUmod_st>> {
    // The driver wants the image aligned to eight bytes.
    let mut aligned = reserve::filled("an image of kernels", image.len().div_ceil(8) + 1, 0u64)?;
    for (to, from) in aligned.iter_mut().zip(image.chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..from.len()].copy_from_slice(from);
        *to = u64::from_ne_bytes(bytes);
    }
    let mut log = [0u8; 2048];
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values: [*mut c_void; 2] = [
        log.as_mut_ptr().cast(),
        ptr::without_provenance_mut(log.len() - 1),
    ];
    let mut raw = ptr::null_mut();
    // SAFETY: `aligned` is a whole fatbin (its header contains its length) and a zero after it;
    // there are two options; all of it outlives the call.
    let outcome = unsafe {
        context.driver.cuModuleLoadDataEx(
            &mut raw,
            aligned.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    let Err(failed) = outcome else {
        let take = |_: &Driver, to: &mut *mut CUmod_st| {
            *to = raw;
            Ok(())
        };
        return Owned::new(context, take, Driver::cuModuleUnload);
    };
    const NO_BINARY: u32 = CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU as u32;
    const UNSUPPORTED_PTX: u32 = CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION as u32;
    Err(match failed.code {
        NO_BINARY => Reason::NoImage {
            name: found.name.clone(),
            have: found.arch,
            need: MIN_ARCH,
        }
        .into(),
        UNSUPPORTED_PTX => Reason::DriverTooOld {
            have: found.driver,
            need,
        }
        .into(),
        _ => {
            let end = log.iter().position(|&b| b == 0).unwrap_or(0);
            let words = String::from_utf8_lossy(&log[..end]);
            let words = words.trim();
            Error::Device(match words.is_empty() {
                true => format!("loading the kernels of {file}: {failed}"),
                false => format!("loading the kernels of {file}: {failed}: {words}"),
            })
        }
    })
}

/// The lowest virtual architecture for which any of the functions was compiled, as 10 major +
/// minor.
fn compiled_for(context: &Context, functions: &[Option<CUfunction>]) -> Result<c_int> {
    let mut least = c_int::MAX;
    for &function in functions.iter().flatten() {
        let mut version = 0;
        let (to, which) = (&mut version, Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION);
        // SAFETY: the function's module is loaded; `to` outlives the call.
        unsafe { context.driver.cuFuncGetAttribute(to, which, function) }?;
        least = least.min(version);
    }
    Ok(least)
}

/// Lets functions prefer as much shared memory, beside L1, as a multiprocessor can have. Returns
/// whether the driver takes such a preference for all of them; otherwise none has one. A
/// multiprocessor changes its carve-out only when it is empty, so a launch that would get another
/// one than the launch before it could not start early.
fn prefer_shared(context: &Context, functions: &[CUfunction]) -> Result<bool> {
    let carveout = Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    // SAFETY: the function's module is loaded.
    let set = |f, percent| unsafe { context.driver.cuFuncSetAttribute(f, carveout, percent) };
    for (n, &function) in functions.iter().enumerate() {
        match set(function, 100) {
            Err(failed) if failed.code == CUresult::CUDA_ERROR_INVALID_VALUE as u32 => {
                let default = CUshared_carveout::CU_SHAREDMEM_CARVEOUT_DEFAULT as c_int;
                functions[..n].iter().try_for_each(|&f| set(f, default))?;
                return Ok(false);
            }
            outcome => outcome?,
        }
    }
    Ok(true)
}

/// The dynamic shared memory that a kernel cannot do without: kernels for 9.0 state theirs, and
/// others run on 8.6, which has no more for a block.
fn most_needed(kernel: Kernel) -> c_int {
    match kernel.is_hopper() {
        true => GPU_HOPPER_QUARTER_SHARED as c_int, // the most of them
        false => 99 << 10,
    }
}

/// Looks a kernel up, and allows it as much dynamic shared memory as the device has beside the
/// kernel's own (`shared` is both). Some drivers may keep more for themselves than they say, so
/// when this is refused, the kernel gets what it needs. Returns the function and these bytes;
/// `None` if the kernel exists for other GPUs only, or takes more than there is here.
fn function(
    context: &Context,
    modules: &[(&str, Owned<CUmod_st>)],
    kernel: Kernel,
    shared: c_int,
) -> Result<Option<(CUfunction, c_int)>> {
    let name = kernel.name();
    let c_name = CString::new(name).unwrap_or_default();
    let driver = &context.driver;
    // Most kernels lie in the file whose name theirs begins with. In another order, the driver
    // would refuse more than a thousand calls, which fill the reports of compute-sanitizer.
    let mut likely: Vec<_> = modules.iter().collect();
    likely.sort_by_key(|(file, _)| Reverse(name.starts_with(file).then_some(file.len())));
    for (_, module) in likely {
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, the name NUL-terminated.
        match unsafe { driver.cuModuleGetFunction(&mut function, module.raw, c_name.as_ptr()) } {
            Err(failed) if failed.code == CUresult::CUDA_ERROR_NOT_FOUND as u32 => continue,
            outcome => outcome?,
        }
        let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let size = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        let mut own = 0;
        // SAFETY: the function was just found; `own` outlives the call.
        unsafe { driver.cuFuncGetAttribute(&mut own, size, function) }?;
        let (left, needed) = (shared - own, most_needed(kernel));
        if kernel.is_hopper() && left < needed {
            return Ok(None);
        }
        // SAFETY: as above.
        let set = |bytes| unsafe { driver.cuFuncSetAttribute(function, most, bytes) };
        let allowed = match set(left) {
            Err(failed)
                if failed.code == CUresult::CUDA_ERROR_INVALID_VALUE as u32 && needed < left =>
            {
                set(needed).map(|()| needed)
            }
            outcome => outcome.map(|()| left),
        };
        return Ok(Some((function, allowed?)));
    }
    if kernel.is_hopper() {
        return Ok(None);
    }
    Err(Reason::Kernels(format!("they lack `{name}`")).into())
}
