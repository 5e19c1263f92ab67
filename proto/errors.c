#include "proto/errors.h"

const char *hbm_error_name(int error)
{
    switch (error) {
    case HBM_OK:
        return "OK";
#define ERROR(name, number, what, remedy)                                                                    \
    case HBM_E_##name:                                                                                       \
        return #name;
#include "proto/errors.def"
#undef ERROR
    }
    return "UNKNOWN";
}

const char *hbm_error_what(int error)
{
    switch (error) {
    case HBM_OK:
        return "success";
#define ERROR(name, number, what, remedy)                                                                    \
    case HBM_E_##name:                                                                                       \
        return what;
#include "proto/errors.def"
#undef ERROR
    }
    return "an error of another version of hbmd";
}

const char *hbm_error_remedy(int error)
{
    switch (error) {
#define ERROR(name, number, what, remedy)                                                                    \
    case HBM_E_##name:                                                                                       \
        return remedy;
#include "proto/errors.def"
#undef ERROR
    }
    return "";
}
