// SPDX-License-Identifier: (Apache-2.0 OR MIT) AND GPL-2.0-only
//! Subprograms that exist once for each IP family. Such a function is exported: so the kernel
//! verifies it once and not on every path that leads to it. Its arguments and its result must be
//! plain numbers, or pointers to keys and entries. One that has nothing to say returns 0.

/// Makes the subprograms `$v4` and `$v6` of the generic function `$body`, and the generic function
/// `$name`, which calls the subprogram of its family. A first argument `skb` is the packet.
macro_rules! by_family {
    // This form takes a packet and returns an outcome or a step.
    ($(#[$doc:meta])* $name:ident $v4:ident $v6:ident = $body:ident -> $result:ty) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name<F: $crate::family::Family>(skb: $crate::packet::Skb) -> $result {
            <$result>::from_word(if F::VERSION == 4 {
                $v4(skb.raw())
            } else {
                $v6(skb.raw())
            })
        }
        by_family! { @skb $v4 [] $body Ipv4 [.word()] }
        by_family! { @skb $v6 [] $body Ipv6 [.word()] }
    };
    ($(#[$doc:meta])* $vis:vis fn $name:ident(skb $(, $arg:ident)*) = $v4:ident $v6:ident of $body:ident) => {
        $(#[$doc])*
        #[inline(always)]
        $vis fn $name<F: $crate::family::Family>(skb: $crate::packet::Skb, $($arg: u32),*) -> u32 {
            if F::VERSION == 4 {
                $v4(skb.raw(), $($arg),*)
            } else {
                $v6(skb.raw(), $($arg),*)
            }
        }
        by_family! { @skb $v4 [$($arg)*] $body Ipv4 [] }
        by_family! { @skb $v6 [$($arg)*] $body Ipv6 [] }
    };
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident),*) = $v4:ident $v6:ident of $body:ident) => {
        $(#[$doc])*
        #[inline(always)]
        $vis fn $name<T: $crate::maps::tables::Tables>($($arg: u32),*) -> u32 {
            if T::VERSION == 4 {
                $v4($($arg),*)
            } else {
                $v6($($arg),*)
            }
        }
        by_family! { @words $v4 [$($arg)*] $body Ipv4 }
        by_family! { @words $v6 [$($arg)*] $body Ipv6 }
    };
    // This form takes pointers to keys and entries, which the kernel checks by their types.
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ident),*) = $v4:ident $v6:ident of $body:ident) => {
        $(#[$doc])*
        #[inline(always)]
        $vis fn $name<T: $crate::maps::tables::Tables>($($arg: *mut $type<T::Addr>),*) -> u32 {
            if T::VERSION == 4 {
                $v4($($arg.cast()),*)
            } else {
                $v6($($arg.cast()),*)
            }
        }
        by_family! { @pointers $v4 [$($arg: $type)*] $body Ipv4 V4 }
        by_family! { @pointers $v6 [$($arg: $type)*] $body Ipv6 V6 }
    };
    (@pointers $name:ident [$($arg:ident: $type:ident)*] $body:ident $family:ident $addr:ident) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name($($arg: *mut $type<proxy_common::$addr>),*) -> u32 {
            // The kernel demands that a pointer is compared with null before it is used.
            if $($arg.is_null())||* {
                return 0;
            }
            $body::<$crate::packet::$family>($($arg),*)
        }
    };
    (@skb $name:ident [$($arg:ident)*] $body:ident $family:ident [$($word:tt)*]) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(skb: *mut aya_ebpf::bindings::__sk_buff, $($arg: u32),*) -> u32 {
            $body::<$crate::packet::$family>($crate::packet::Skb::new(skb), $($arg),*) $($word)*
        }
    };
    (@words $name:ident [$($arg:ident)*] $body:ident $family:ident) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name($($arg: u32),*) -> u32 {
            $body::<$crate::packet::$family>($($arg),*)
        }
    };
}
