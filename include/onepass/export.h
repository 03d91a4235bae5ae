/* ONEPASS_API marks what a shared libonepass exports; everything else is hidden. */
#ifndef ONEPASS_EXPORT_H
#define ONEPASS_EXPORT_H

#if defined(__GNUC__)
#define ONEPASS_API __attribute__((visibility("default")))
#else
#define ONEPASS_API
#endif

#endif
