//! Products of prompts by cuBLASLt, if LLAMABI_CUDA_BLASLT asks for it. The library is opened at
//! run time, never linked. (U)
//!
//! It is off by default, because the library chooses its kernels by the number of rows, so a result
//! may depend on the other rows of the batch. We ask the library for an algorithm once for each
//! shape and keep the answer, which is called a plan. `library.rs` says which products are meant.
#![allow(unsafe_code)]
#![allow(non_snake_case, reason = "the library's names")]
#![allow(clippy::too_many_arguments, reason = "the library's signatures")]

use super::context::Context;
use crate::Dtype;
use crate::backend::gpu::device::Product;
use crate::backend::gpu::driver::sys::CUstream;
use cudarc::cublaslt::sys;
use std::ffi::{CString, c_int, c_void};
use std::mem::offset_of;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use sys::*;

/// Bytes of the library's workspace, as its makers advise for compute capability 9.0.
pub(super) const WORKSPACE: usize = 32 << 20;
/// Version 12.0. What is used of the bindings has been the same since then.
const OLDEST: usize = 120_000;
/// The largest number of plans. A layer has four products, and rows are rounded up to powers of
/// two.
const MOST_PLANS: usize = 128;

/// CUBLAS_OP_T, the one thing that is needed of the bindings of cuBLAS.
const OP_T: c_int = 1;
/// The alignments of A, B, C and D.
const PREFERENCE_ALIGNMENT: [cublasLtMatmulPreferenceAttributes_t; 4] = [
    cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
    cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
    cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
];
/// The alignment of rows in bytes: they begin at multiples of 32 elements, and the smallest
/// elements have two bytes.
const ALIGNMENT: u32 = 64;

fn type_of(dtype: Dtype) -> Option<cudaDataType> {
    match dtype {
        Dtype::F16 => Some(cudaDataType::CUDA_R_16F),
        Dtype::Bf16 => Some(cudaDataType::CUDA_R_16BF),
        _ => None,
    }
}

/// cublasLtMatmulHeuristicResult_t, with the status as a number: the library writes it, and the
/// enum may not list what a newer one writes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algorithm: cublasLtMatmulAlgo_t,
    workspace: usize,
    status: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = {
    type Bound = cublasLtMatmulHeuristicResult_t;
    assert!(size_of::<Heuristic>() == size_of::<Bound>());
    assert!(offset_of!(Heuristic, workspace) == offset_of!(Bound, workspaceSize));
    assert!(offset_of!(Heuristic, status) == offset_of!(Bound, state));
    assert!(offset_of!(Heuristic, waves) == offset_of!(Bound, wavesCount));
};

type Said = Result<(), String>;

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        // The bindings have the same signatures. Their functions are never called.
        $(const _: unsafe fn($($type),*) -> cublasStatus_t = sys::$name;)*

        struct Library {
            cublasLtGetVersion: unsafe extern "C" fn() -> usize,
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        impl Library {
            fn look_up(handle: *mut c_void) -> Result<Library, String> {
                let symbol = |name: &str| {
                    let c_name = CString::new(name).unwrap_or_default();
                    // SAFETY: the handle is never closed.
                    let symbol = unsafe { libc::dlsym(handle, c_name.as_ptr()) };
                    if symbol.is_null() { Err(format!("it has no {name}")) } else { Ok(symbol) }
                };
                // SAFETY: the functions have these names, and the signatures that cublasLt.h gives
                // them.
                unsafe {
                    Ok(Library {
                        cublasLtGetVersion: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn() -> usize,
                        >(symbol("cublasLtGetVersion")?),
                        $($name: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($type),*) -> c_int,
                        >(symbol(stringify!($name))?),)*
                    })
                }
            }

            $(
                /// # Safety
                /// As the library's reference says.
                unsafe fn $name(&self, $($argument: $type),*) -> Said {
                    // SAFETY: the caller's contract.
                    match unsafe { (self.$name)($($argument),*) } {
                        0 => Ok(()),
                        code => Err(format!("{}: status {code}", stringify!($name))),
                    }
                }
            )*
        }
    };
}

functions! {
    cublasLtCreate(handle: *mut cublasLtHandle_t);
    cublasLtDestroy(handle: cublasLtHandle_t);
    cublasLtMatmulDescCreate(
        to: *mut cublasLtMatmulDesc_t, compute: cublasComputeType_t, scale: cudaDataType);
    cublasLtMatmulDescDestroy(what: cublasLtMatmulDesc_t);
    cublasLtMatmulDescSetAttribute(
        what: cublasLtMatmulDesc_t, attribute: cublasLtMatmulDescAttributes_t,
        value: *const c_void, bytes: usize);
    cublasLtMatrixLayoutCreate(
        to: *mut cublasLtMatrixLayout_t, kind: cudaDataType, rows: u64, cols: u64, stride: i64);
    cublasLtMatrixLayoutDestroy(what: cublasLtMatrixLayout_t);
    cublasLtMatrixLayoutSetAttribute(
        what: cublasLtMatrixLayout_t, attribute: cublasLtMatrixLayoutAttribute_t,
        value: *const c_void, bytes: usize);
    cublasLtMatmulPreferenceCreate(to: *mut cublasLtMatmulPreference_t);
    cublasLtMatmulPreferenceDestroy(what: cublasLtMatmulPreference_t);
    cublasLtMatmulPreferenceSetAttribute(
        what: cublasLtMatmulPreference_t, attribute: cublasLtMatmulPreferenceAttributes_t,
        value: *const c_void, bytes: usize);
    cublasLtMatmulAlgoGetHeuristic(
        handle: cublasLtHandle_t, product: cublasLtMatmulDesc_t, a: cublasLtMatrixLayout_t,
        b: cublasLtMatrixLayout_t, c: cublasLtMatrixLayout_t, d: cublasLtMatrixLayout_t,
        preference: cublasLtMatmulPreference_t, most: c_int,
        results: *mut cublasLtMatmulHeuristicResult_t, n: *mut c_int);
    cublasLtMatmul(
        handle: cublasLtHandle_t, product: cublasLtMatmulDesc_t, alpha: *const c_void,
        a: *const c_void, a_layout: cublasLtMatrixLayout_t, b: *const c_void,
        b_layout: cublasLtMatrixLayout_t, beta: *const c_void, c: *const c_void,
        c_layout: cublasLtMatrixLayout_t, d: *mut c_void, d_layout: cublasLtMatrixLayout_t,
        algorithm: *const cublasLtMatmulAlgo_t, workspace: *mut c_void, bytes: usize,
        stream: cudaStream_t);
}

/// The algorithm for products of up to `rows` rows.
struct Plan {
    rows: usize,
    n: usize,
    k: usize,
    kind: cudaDataType,
    strides: [usize; 3],
    /// The layouts of the weights, the rows and the sums.
    layouts: [cublasLtMatrixLayout_t; 3],
    found: Heuristic,
}

/// An opened library, in the current context.
pub(super) struct BlasLt {
    library: Library,
    handle: cublasLtHandle_t,
    product: cublasLtMatmulDesc_t,
    preference: cublasLtMatmulPreference_t,
    workspace: u64,
    plans: Vec<Plan>,
    context: Arc<Context>,
}

// SAFETY: handles may be used from any thread on which their context is current, by one thread at a
// time.
unsafe impl Send for BlasLt {}

impl BlasLt {
    /// Opens the library. `asked` is a file or "1". For "1" it tries the library that is already
    /// loaded, then the one that the loader finds, then the toolkit's. The context must be current.
    pub fn open(asked: &str, context: &Arc<Context>) -> Result<BlasLt, String> {
        let library = Library::look_up(find(asked)?)?;
        // SAFETY: no arguments.
        let version = unsafe { (library.cublasLtGetVersion)() };
        if version < OLDEST {
            return Err(format!("version {version}, needed is {OLDEST}"));
        }
        let mut this = BlasLt {
            library,
            handle: ptr::null_mut(),
            product: ptr::null_mut(),
            preference: ptr::null_mut(),
            workspace: 0,
            plans: Vec::new(),
            context: context.clone(),
        };
        let lib = &this.library;
        let (bytes, least) = (WORKSPACE as u64, ALIGNMENT);
        let (sums, transposed) = (cudaDataType::CUDA_R_32F, OP_T);
        // SAFETY: every value has the type that cublasLt.h says and outlives its call; `drop`
        // destroys what was made.
        unsafe {
            context
                .driver
                .cuMemAlloc_v2(&mut this.workspace, WORKSPACE)
                .map_err(|e| e.to_string())?;
            lib.cublasLtCreate(&mut this.handle)?;
            let compute = cublasComputeType_t::CUBLAS_COMPUTE_32F;
            lib.cublasLtMatmulDescCreate(&mut this.product, compute, sums)?;
            let which = cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
            let op = (&raw const transposed).cast();
            lib.cublasLtMatmulDescSetAttribute(this.product, which, op, 4)?;
            lib.cublasLtMatmulPreferenceCreate(&mut this.preference)?;
            let most = (&raw const bytes).cast();
            lib.cublasLtMatmulPreferenceSetAttribute(
                this.preference,
                cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                most,
                8,
            )?;
            for which in PREFERENCE_ALIGNMENT {
                let least = (&raw const least).cast();
                lib.cublasLtMatmulPreferenceSetAttribute(this.preference, which, least, 4)?;
            }
        }
        Ok(this)
    }

    /// Launches the product in `stream`. The context must be current.
    ///
    /// # Safety
    /// The same as for [`crate::backend::gpu::device::Device::product`].
    pub unsafe fn run(&mut self, p: &Product, stream: CUstream) -> Said {
        let kind = type_of(p.dtype).ok_or_else(|| format!("weights of {}", p.dtype))?;
        let plan = self.plan(p, kind)?;
        let (lib, plan) = (&self.library, &self.plans[plan]);
        let [weights, rows, sum] = plan.layouts;
        let (one, m) = (1.0f32, p.m as u64);
        let columns = cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_COLS;
        let at = |address: u64| ptr::without_provenance_mut::<c_void>(address as usize);
        let before = if p.adds { 1.0f32 } else { 0.0 };
        // SAFETY: the layouts have this shape, and `m` columns from here on. Addresses are right by
        // this function's contract. The workspace is used in this stream only.
        unsafe {
            for layout in [rows, sum] {
                let m = (&raw const m).cast();
                lib.cublasLtMatrixLayoutSetAttribute(layout, columns, m, 8)?;
            }
            lib.cublasLtMatmul(
                self.handle,
                self.product,
                (&raw const one).cast(),
                at(p.w),
                weights,
                at(p.y),
                rows,
                (&raw const before).cast(),
                at(p.x),
                sum,
                at(p.x),
                sum,
                &plan.found.algorithm,
                at(self.workspace),
                WORKSPACE,
                stream.cast(),
            )
        }
    }

    /// The index of the plan for this shape, with the number of rows rounded up. Makes the plan if
    /// there is none.
    fn plan(&mut self, p: &Product, kind: cudaDataType) -> Result<usize, String> {
        let rows = p.m.next_power_of_two();
        let strides = [p.w_stride, p.y_stride, p.x_stride];
        let same = |plan: &Plan| {
            (plan.rows, plan.n, plan.k, plan.kind) == (rows, p.n, p.k, kind)
                && plan.strides == strides
        };
        if let Some(at) = self.plans.iter().position(same) {
            return Ok(at);
        }
        if self.plans.len() == MOST_PLANS {
            return Err(format!("more than {MOST_PLANS} shapes"));
        }
        self.plans.push(Plan {
            rows,
            n: p.n,
            k: p.k,
            kind,
            strides,
            layouts: [ptr::null_mut(); 3],
            found: Heuristic {
                algorithm: cublasLtMatmulAlgo_t { data: [0; 8] },
                workspace: 0,
                status: 0,
                waves: 0.0,
                reserved: [0; 4],
            },
        });
        // After a failure the library is not used any more. So an incomplete plan is never used,
        // and it is freed with the library.
        let at = self.plans.len() - 1;
        let (lib, plan) = (&self.library, &mut self.plans[at]);
        // The library's matrices are column-major: its columns are our rows.
        let sums = cudaDataType::CUDA_R_32F;
        let shapes = [(kind, p.k, p.n), (kind, p.k, rows), (sums, p.n, rows)];
        let mut n = 0;
        // SAFETY: there is room for one result; everything outlives the calls.
        unsafe {
            for (i, (kind, height, width)) in shapes.into_iter().enumerate() {
                let to = &mut plan.layouts[i];
                let stride = strides[i] as i64;
                lib.cublasLtMatrixLayoutCreate(to, kind, height as u64, width as u64, stride)?;
            }
            let [a, b, c] = plan.layouts;
            lib.cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                self.product,
                a,
                b,
                c,
                c,
                self.preference,
                1,
                (&raw mut plan.found).cast(),
                &mut n,
            )?;
        }
        match (n, plan.found.status) {
            (1.., 0) => Ok(at),
            (_, status) => Err(format!(
                "nothing for {rows} x {} x {} (status {status})",
                p.n, p.k
            )),
        }
    }
}

impl Drop for BlasLt {
    /// No product is in progress, because whoever drops the library has waited.
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else {
            return;
        };
        let lib = &self.library;
        // SAFETY: each was made by the library or is null; nobody uses it any more. Failures are
        // ignored.
        unsafe {
            for layout in self.plans.iter().flat_map(|plan| plan.layouts) {
                if !layout.is_null() {
                    let _ = lib.cublasLtMatrixLayoutDestroy(layout);
                }
            }
            if !self.preference.is_null() {
                let _ = lib.cublasLtMatmulPreferenceDestroy(self.preference);
            }
            if !self.product.is_null() {
                let _ = lib.cublasLtMatmulDescDestroy(self.product);
            }
            if !self.handle.is_null() {
                let _ = lib.cublasLtDestroy(self.handle);
            }
        }
        if self.workspace != 0 {
            // SAFETY: allocated in `open`; nothing that runs uses it.
            let _ = unsafe { self.context.driver.cuMemFree_v2(self.workspace) };
        }
    }
}

/// The handle of the library, which is never closed.
fn find(asked: &str) -> Result<*mut c_void, String> {
    let open = |name: &str, more: c_int| {
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: opening a library runs its initialisers, which is what was asked for.
        unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | more) }
    };
    const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];
    let mut candidates: Vec<(String, c_int)> = Vec::new();
    if asked == "1" {
        candidates.extend(NAMES.map(|name| (name.into(), libc::RTLD_NOLOAD)));
        candidates.extend(NAMES.map(|name| (name.into(), 0)));
        if let Some(home) = std::env::var_os("CUDA_HOME") {
            let dir = Path::new(&home).join("lib64");
            let path = |name| (dir.join(name).to_string_lossy().into_owned(), 0);
            candidates.extend(NAMES.map(path));
        }
    } else {
        candidates.push((asked.into(), 0));
    }
    let found = candidates.iter().map(|(name, more)| open(name, *more));
    match found.into_iter().find(|handle| !handle.is_null()) {
        Some(handle) => Ok(handle),
        None => Err("it cannot be opened".into()),
    }
}
