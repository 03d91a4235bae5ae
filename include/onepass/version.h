/* The version of the headers, for C and C++. That of the linked library: onepass_version() and onepass::version(). */
#ifndef ONEPASS_VERSION_H
#define ONEPASS_VERSION_H

#define ONEPASS_VERSION_MAJOR 0
#define ONEPASS_VERSION_MINOR 2
#define ONEPASS_VERSION_PATCH 0
#define ONEPASS_VERSION "0.2.0"

#endif
