//! Types that may live in a heap span, and how their layout is compared between programs.

use core::any::TypeId;
use core::marker::PhantomData;
use pluvio_units::KeyHash;

/// Ties a value to the one span, and the one call of read or write, that it lies in. Two of them
/// are never the same for the compiler, so no pointer gets from one span into another, and none out
/// of the call. It also keeps values in their thread.
pub(crate) type Brand<'id> = (PhantomData<fn(&'id ()) -> &'id ()>, PhantomData<*const ()>);

/// A new one.
pub(crate) const fn brand<'id>() -> Brand<'id> {
    (PhantomData, PhantomData)
}

/// A type whose values may live in a heap span.
///
/// Numbers, `bool`, `char`, `()`, arrays of such types, the types of this crate, and structs of all
/// these made by [`seg_struct!`](crate::seg_struct). No references, no `Box`, `String` or `Arc`, no trait
/// objects and no functions: they point to memory of one process.
///
/// # Safety
/// - The type's layout is the same in all programs that describe it alike: numbers, or `repr(C)`,
///   or `repr(transparent)` of such a type.
/// - A value holds no pointer but those of this crate's types, all of the brand `'id` alone, and
///   nothing with interior mutability. Its alignment is at most 16.
/// - [`Self::In`] is the same type with another brand.
/// - [`Self::describe`] tells two types of different layout or meaning apart, and describes the
///   types of all fields.
#[allow(unsafe_code)] // a promise of those who implement it
pub unsafe trait SegSafe: Sized {
    /// This type, inside the span with the brand `'id`.
    type In<'id>: SegSafe;

    /// Says what the type consists of.
    fn describe(walk: &mut LayoutWalk);
}

/// Collects what types consist of, so that two programs can compare it by one number.
#[derive(Debug, Default)]
pub struct LayoutWalk {
    text: Vec<u8>,
    seen: Vec<TypeId>,
}

impl LayoutWalk {
    /// Adds a word, for example a type's name.
    pub fn word(&mut self, word: &str) {
        self.text.extend(word.as_bytes());
        self.text.push(0);
    }

    /// Adds a number, for example a size.
    pub fn number(&mut self, number: usize) {
        self.text.extend((number as u64).to_le_bytes());
    }

    /// Adds a type with a name. A type that contains itself, by pointers, is described once.
    pub fn named<T: 'static>(&mut self, name: &str, fields: impl FnOnce(&mut Self)) {
        self.word(name);
        self.number(size_of::<T>());
        self.number(align_of::<T>());
        let id = TypeId::of::<T>();
        if let Some(place) = self.seen.iter().position(|seen| *seen == id) {
            self.number(place);
            return;
        }
        self.seen.push(id);
        fields(self);
        self.word("end");
    }

    /// The number for the layout of `T`.
    #[must_use]
    pub fn of<T: SegSafe>() -> u64 {
        let mut walk = Self::default();
        T::describe(&mut walk);
        KeyHash::of(0, &walk.text).0
    }
}

/// Implements [`SegSafe`] for types that have one layout everywhere and no pointers.
macro_rules! plain {
    ($($type:ty),*) => {$(
        // SAFETY: a number of fixed size without pointers.
        #[allow(unsafe_code)]
        unsafe impl SegSafe for $type {
            type In<'id> = $type;

            fn describe(walk: &mut LayoutWalk) {
                walk.word(stringify!($type));
            }
        }
    )*};
}

plain!(
    u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64, bool, char
);

// SAFETY: no bytes.
#[allow(unsafe_code)]
unsafe impl SegSafe for () {
    type In<'id> = ();

    fn describe(walk: &mut LayoutWalk) {
        walk.word("nothing");
    }
}

// SAFETY: an array is its elements one behind the other.
#[allow(unsafe_code)]
unsafe impl<T: SegSafe, const N: usize> SegSafe for [T; N] {
    type In<'id> = [T::In<'id>; N];

    fn describe(walk: &mut LayoutWalk) {
        walk.word("array");
        walk.number(N);
        T::describe(walk);
    }
}

/// Makes a struct that may live in a heap span. Its fields are of types that may.
///
/// ```
/// use pluvio_spacejmp::{SegBox, SegStr, SegVec, seg_struct};
///
/// seg_struct! {
///     /// A town and its roads.
///     #[derive(Debug)]
///     pub struct Town<'id> {
///         /// What it is called.
///         pub name: SegStr<'id>,
///         /// Who lives there.
///         pub people: u64,
///         /// Where it lies.
///         pub place: Place,
///         /// Lengths of its roads.
///         pub roads: SegVec<'id, f32>,
///         /// The next town of the list.
///         pub next: Option<SegBox<'id, Town<'id>>>,
///     }
/// }
///
/// seg_struct! {
///     /// Where something lies.
///     #[derive(Clone, Copy, Debug)]
///     pub struct Place {
///         /// To the east.
///         pub east: f64,
///         /// To the north.
///         pub north: f64,
///     }
/// }
/// ```
///
/// A field that points to memory of the process is refused:
///
/// ```compile_fail,E0277
/// pluvio_spacejmp::seg_struct! {
///     struct Town { name: String }
/// }
/// ```
///
/// ```compile_fail,E0277
/// pluvio_spacejmp::seg_struct! {
///     struct Town<'id> { name: &'id str }
/// }
/// ```
///
/// So is one with a brand of its own, which could be taken out of the span:
///
/// ```compile_fail
/// pluvio_spacejmp::seg_struct! {
///     struct Town { roads: pluvio_spacejmp::SegVec<'static, u64> }
/// }
/// ```
#[macro_export]
macro_rules! seg_struct {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(<$id:lifetime>)? {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        $vis struct $name $(<$id>)? {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }

        // SAFETY: `repr(C)`, of fields that are `SegSafe`. `same_brand` compiles only if all
        // pointers of the fields have the struct's brand.
        #[allow(unsafe_code)]
        unsafe impl $(<$id>)? $crate::SegSafe for $name $(<$id>)? {
            type In<'__id> = $crate::seg_struct!(@in $name '__id $($id)?);

            fn describe(walk: &mut $crate::LayoutWalk) {
                const { assert!(::core::mem::align_of::<Self>() <= 16, "aligned to more than 16") }
                walk.named::<$crate::seg_struct!(@static $name $($id)?)>(
                    ::core::stringify!($name),
                    |_walk| {$(
                        _walk.word(::core::stringify!($field));
                        _walk.number(::core::mem::offset_of!(Self, $field));
                        <$type as $crate::SegSafe>::describe(_walk);
                    )*},
                );
            }
        }

        $crate::seg_struct!(@same_brand [$($id)?] $($type),*);
    };
    (@in $name:ident $new:lifetime $id:lifetime) => { $name<$new> };
    (@in $name:ident $new:lifetime) => { $name };
    (@static $name:ident $id:lifetime) => { $name<'static> };
    (@static $name:ident) => { $name };
    (@same_brand [$id:lifetime] $($type:ty),*) => {$(
        const _: () = {
            #[allow(dead_code)]
            fn same_brand<$id>(field: <$type as $crate::SegSafe>::In<$id>) -> $type {
                field
            }
        };
    )*};
    (@same_brand [] $($type:ty),*) => {$(
        const _: () = {
            #[allow(dead_code)]
            fn same_brand<'__id>(field: <$type as $crate::SegSafe>::In<'__id>) -> $type {
                field
            }
        };
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SegBox, SegVec};

    crate::seg_struct! {
        struct Node<'id> { value: u64, next: Option<SegBox<'id, Node<'id>>> }
    }

    mod other {
        use crate::SegBox;
        crate::seg_struct! {
            pub struct Node<'id> { value: i64, next: Option<SegBox<'id, Node<'id>>> }
        }
    }

    crate::seg_struct! {
        struct Pair { a: u32, b: [u8; 4] }
    }

    #[test]
    fn layouts_are_told_apart() {
        let layouts = [
            LayoutWalk::of::<u64>(),
            LayoutWalk::of::<i64>(),
            LayoutWalk::of::<[u64; 2]>(),
            LayoutWalk::of::<SegVec<'_, u64>>(),
            LayoutWalk::of::<SegVec<'_, i64>>(),
            LayoutWalk::of::<SegVec<'_, SegVec<'_, i64>>>(),
            LayoutWalk::of::<Node<'_>>(),
            LayoutWalk::of::<other::Node<'_>>(),
            LayoutWalk::of::<SegBox<'_, Node<'_>>>(),
            LayoutWalk::of::<Pair>(),
        ];
        for (index, layout) in layouts.iter().enumerate() {
            assert!(!layouts[..index].contains(layout), "{index}");
        }
        assert_eq!(LayoutWalk::of::<Node<'_>>(), LayoutWalk::of::<Node<'_>>());
    }

    #[test]
    fn fields_are_used() {
        // The structs of this module stand for types; their fields are read by nobody else.
        let pair = Pair { a: 1, b: [2; 4] };
        assert_eq!(pair.a + u32::from(pair.b[0]), 3);
        let node = Node {
            value: 1,
            next: None,
        };
        let other = other_node();
        assert_eq!(node.value as i64 + other, 3);
        assert!(node.next.is_none());
    }

    fn other_node() -> i64 {
        2
    }
}
