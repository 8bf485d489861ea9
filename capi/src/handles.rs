//! Handles: numbers that name what the library made for the program, and that it looks up in one table.
//!
//! A number has a place in the table and how often the place was used, so that one that was freed, or which was never made, names nothing.
//! What it names is kept by who uses it: a call takes a share out of the table, and the call that frees the handle takes it out of the table
//! and waits for the calls that run.

use std::sync::{Arc, LazyLock};

use bytemuck::Zeroable;
use gpuvm::{
    Kernel, Launch, Module, RawBroadcast, RawBuffer, RawElasticBuffer, RawRegion, SlotCache, StreamHandle, Vm,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use crate::code::{Gone, Result};

/// A virtual memory, with one GPU or several. Its GPUs, and what they hold, end when its handle and those of all regions, buffers, modules,
/// kernels and launches of it are freed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_vm {
    /// 0: the null handle.
    pub id: u64,
}

/// An array whose pages kernels fetch: the argument for a `gpuvm::array<T>` parameter.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_region {
    /// 0: the null handle.
    pub id: u64,
}

/// Device memory of a fixed number of elements: the argument for a pointer parameter. It is not paged.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_buffer {
    /// 0: the null handle.
    pub id: u64,
}

/// Device memory that grows and shrinks at one address: the argument for a pointer parameter. It is not paged.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_elastic {
    /// 0: the null handle.
    pub id: u64,
}

/// An array of which each subscribed GPU of a virtual memory holds a copy: the argument for a `gpuvm::broadcast<T>` parameter.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_broadcast {
    /// 0: the null handle.
    pub id: u64,
}

/// Slots in GPU memory for records of regions. It is no argument: kernels use its buffers of slots.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_slot_cache {
    /// 0: the null handle.
    pub id: u64,
}

/// Compiled source text, for one GPU of a virtual memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_module {
    /// 0: the null handle.
    pub id: u64,
}

/// A kernel of a module. It keeps the module.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_kernel {
    /// 0: the null handle.
    pub id: u64,
}

/// A further stream of a GPU: launches of one stream run in order, those of different streams beside each other.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_stream {
    /// 0: the GPU's default stream, where a launch takes it.
    pub id: u64,
}

/// A launch in flight.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_launch {
    /// 0: the null handle.
    pub id: u64,
}

/// A thing of the program's, until its handle is freed.
pub struct Held<T> {
    thing: RwLock<Option<T>>,
}

/// A handle as C has it.
pub trait Handle: Copy {
    /// What it names.
    type Thing: Kind;

    /// What functions call a parameter of it.
    const PARAMETER: &'static str;

    /// That with the number; 0 is the null handle.
    fn new(id: u64) -> Self;

    /// Its number.
    fn id(self) -> u64;
}

/// What a handle can name.
pub trait Kind: Sized + 'static {
    /// Its name in messages.
    const NAME: &'static str;

    /// It in the table.
    fn wrap(held: Arc<Held<Self>>) -> Object;

    /// It, if that is what the table has.
    fn unwrap(object: &Object) -> Option<&Arc<Held<Self>>>;
}

macro_rules! kinds {
    ($($variant:ident, $name:literal, $thing:ty, $handle:ty, $parameter:literal;)*) => {
        /// A thing in the table.
        pub enum Object {
            $(
                #[doc = $name]
                $variant(Arc<Held<$thing>>),
            )*
        }

        impl Object {
            fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }
        }

        $(
            impl Kind for $thing {
                const NAME: &'static str = $name;

                fn wrap(held: Arc<Held<Self>>) -> Object {
                    Object::$variant(held)
                }

                fn unwrap(object: &Object) -> Option<&Arc<Held<Self>>> {
                    match object {
                        Object::$variant(held) => Some(held),
                        _ => None,
                    }
                }
            }

            impl Handle for $handle {
                type Thing = $thing;

                const PARAMETER: &'static str = $parameter;

                fn new(id: u64) -> Self {
                    Self { id }
                }

                fn id(self) -> u64 {
                    self.id
                }
            }
        )*
    };
}
kinds! {
    Vm, "Vm", Vm, gpuvm_vm, "vm";
    Region, "region", RawRegion, gpuvm_region, "region";
    Buffer, "buffer", RawBuffer, gpuvm_buffer, "buffer";
    Elastic, "elastic buffer", RawElasticBuffer, gpuvm_elastic, "elastic";
    Broadcast, "broadcast array", RawBroadcast, gpuvm_broadcast, "broadcast";
    Slots, "slot cache", SlotCache, gpuvm_slot_cache, "cache";
    Module, "module", Module, gpuvm_module, "module";
    Kernel, "kernel", Kernel, gpuvm_kernel, "kernel";
    Stream, "stream", StreamHandle, gpuvm_stream, "stream";
    Launch, "launch", Launch, gpuvm_launch, "launch";
}

static TABLE: LazyLock<Mutex<SlotMap<DefaultKey, Object>>> = LazyLock::new(Mutex::default);

/// The handle of a thing that was made.
pub fn enter<H: Handle>(thing: H::Thing) -> H {
    let thing = RwLock::new(Some(thing));
    let object = Kind::wrap(Arc::new(Held { thing }));
    H::new(TABLE.lock().insert(object).data().as_ffi())
}

/// The key of a handle; none where no key has that number.
fn key(handle: u64) -> Option<DefaultKey> {
    let key = DefaultKey::from(KeyData::from_ffi(handle));
    (key.data().as_ffi() == handle).then_some(key)
}

/// What `table` has under the handle, if it is a `T`.
fn look<T: Kind>(
    table: &SlotMap<DefaultKey, Object>,
    what: &'static str,
    handle: u64,
) -> Result<(DefaultKey, Arc<Held<T>>), Gone> {
    let wanted = T::NAME;
    if handle == 0 {
        return Err(Gone::Null { what, wanted });
    }
    let found = key(handle).and_then(|key| Some((key, table.get(key)?)));
    let (key, object) = found.ok_or(Gone::NoHandle { what, handle, wanted })?;
    let found = object.name();
    let held = T::unwrap(object).ok_or(Gone::WrongKind { what, wanted, found })?;
    Ok((key, Arc::clone(held)))
}

/// What a handle names. `what`: the parameter, for messages.
///
/// # Errors
/// `Gone`.
pub fn share<T: Kind>(what: &'static str, handle: u64) -> Result<Arc<Held<T>>, Gone> {
    Ok(look(&TABLE.lock(), what, handle)?.1)
}

impl<T: Kind> Held<T> {
    /// The thing, which stays until the guard goes.
    ///
    /// # Errors
    /// `Gone::NoHandle` when somebody freed it between.
    pub fn get(&self, what: &'static str, handle: u64) -> Result<Guard<'_, T>, Gone> {
        // Also when somebody waits to free it: one call may use a thing twice.
        let guard = self.thing.read_recursive();
        let wanted = T::NAME;
        RwLockReadGuard::try_map(guard, Option::as_ref).map_err(|_| Gone::NoHandle { what, handle, wanted })
    }
}

/// The use of a thing.
pub type Guard<'a, T> = parking_lot::MappedRwLockReadGuard<'a, T>;

/// Calls `act` with what a handle names, which nothing frees meanwhile.
///
/// # Errors
/// `Gone`, and those of `act`.
pub fn with<H: Handle, R>(handle: H, act: impl FnOnce(&H::Thing) -> Result<R>) -> Result<R> {
    let held = share::<H::Thing>(H::PARAMETER, handle.id())?;
    let guard = held.get(H::PARAMETER, handle.id())?;
    act(&guard)
}

/// A copy of what a handle names, for calls during which it may be freed.
///
/// # Errors
/// `Gone`.
pub fn copy<H: Handle<Thing: Clone>>(handle: H) -> Result<H::Thing> {
    with(handle, |thing| Ok(thing.clone()))
}

/// Frees a handle: what it named, once the calls that use it have ended. The null handle names nothing to free, and is an error as well.
///
/// # Errors
/// `Gone`.
pub fn take<H: Handle>(handle: H) -> Result<H::Thing, Gone> {
    let (what, wanted) = (H::PARAMETER, H::Thing::NAME);
    let held = {
        let mut table = TABLE.lock();
        let (key, held) = look::<H::Thing>(&table, what, handle.id())?;
        table.remove(key);
        held
    };
    let thing = held.thing.write().take();
    let handle = handle.id();
    thing.ok_or(Gone::NoHandle { what, handle, wanted })
}
