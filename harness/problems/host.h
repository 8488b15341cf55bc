// The host of a candidate whose forward is one native call: torch through its C shim, Python's stable C interface, no header of either.
// Everything is looked up in what the process has loaded already; where something is missing, bind() says so and Python's forward stays.
#ifndef __CUDA_ARCH__
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include <initializer_list>

typedef struct _object PyObject;
typedef struct _ts PyThreadState;
typedef struct _typeobject PyTypeObject;

extern "C" {
extern PyObject _Py_NotImplementedStruct;
extern PyTypeObject PyFloat_Type;
extern PyTypeObject PyBool_Type;
extern PyTypeObject PyLong_Type;
extern PyObject* PyExc_ImportError;
extern PyObject* PyExc_RuntimeError;
extern PyObject* PyExc_ValueError;
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
void PyErr_Clear(void);
PyObject* PyErr_Occurred(void);
PyObject* PyErr_Format(PyObject*, const char*, ...);
PyObject* PyCFunction_NewEx(struct PyMethodDef*, PyObject*, PyObject*);
PyObject* PyDict_GetItem(PyObject*, PyObject*);
PyObject* PyDict_New(void);
int PyDict_SetItemString(PyObject*, const char*, PyObject*);
void PyEval_RestoreThread(PyThreadState*);
PyThreadState* PyEval_SaveThread(void);
double PyFloat_AsDouble(PyObject*);
PyObject* PyFloat_FromDouble(double);
PyObject* PyList_New(intptr_t);
int PyList_SetItem(PyObject*, intptr_t, PyObject*);
long long PyLong_AsLongLong(PyObject*);
PyObject* PyLong_FromLongLong(long long);
PyObject* PyObject_Call(PyObject*, PyObject*, PyObject*);
PyObject* PyObject_GenericGetAttr(PyObject*, PyObject*);
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
PyObject* PyObject_GetAttrString(PyObject*, const char*);
PyObject* PyObject_GetItem(PyObject*, PyObject*);
int PyObject_RichCompareBool(PyObject*, PyObject*, int);
PyObject* PySequence_GetItem(PyObject*, intptr_t);
PyObject* PyTuple_New(intptr_t);
int PyTuple_SetItem(PyObject*, intptr_t, PyObject*);
PyObject* PyUnicode_InternFromString(const char*);
}

namespace host {

typedef struct AtenTensorOpaque* Handle;  // at::Tensor*
typedef int32_t Error;

struct Torch {
    Error (*empty_strided)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*);
    Error (*delete_tensor_object)(Handle);
    Error (*new_tensor_handle)(Handle, Handle*);
    Error (*_reinterpret_tensor)(Handle, int64_t, const int64_t*, const int64_t*, int64_t, Handle*);
    Error (*copy_)(Handle, Handle, int32_t);
    Error (*get_data_ptr)(Handle, void**);
    Error (*get_dim)(Handle, int64_t*);
    Error (*get_sizes)(Handle, int64_t**);
    Error (*get_strides)(Handle, int64_t**);
    Error (*get_storage_offset)(Handle, int64_t*);
    Error (*get_dtype)(Handle, int32_t*);
    Error (*get_layout)(Handle, int32_t*);
    bool (*is_autocast_enabled)(int8_t);
    Error (*get_device_type)(Handle, int32_t*);
    Error (*get_device_index)(Handle, int32_t*);
    bool (*grad_mode_is_enabled)();
    void (*grad_mode_set_enabled)(bool);
#ifdef __CUDACC__
    Error (*get_current_cuda_stream)(int32_t, void**);
    Error (*get_current_device_index)(int32_t*);
    Error (*create_cuda_guard)(int32_t, void**);
    Error (*delete_cuda_guard)(void*);
#endif
    // Operators of this device. Null where this torch has none: then they are called through Python.
    Error (*convolution)(Handle, Handle, Handle*, const int64_t*, int64_t, const int64_t*, int64_t, const int64_t*, int64_t, int32_t,
                         const int64_t*, int64_t, int64_t, Handle*);
    Error (*cat)(const Handle*, int64_t, int64_t, Handle*);
    Error (*mm_out)(Handle, Handle, Handle);
    Error (*bmm_out)(Handle, Handle, Handle);
    Error (*addmm_out)(Handle, Handle, Handle, Handle, double, double);
    PyObject* (*wrap)(Handle);  // of libtorch_python: a new reference to the tensor's object
};
static Torch torch;

#ifdef __CUDACC__
static const int kDevice = 1;
#define HOST_DEVICE "cuda"
#define HOST_LIBRARY "libtorch_cuda.so"
#else
static const int kDevice = 0;
#define HOST_DEVICE "cpu"
#define HOST_LIBRARY "libtorch_cpu.so"
#endif

#define HOST_APART __attribute__((noinline))  // a forward is hundreds of these: copies of them would take the compiler longer than the kernels

static const char* missing = nullptr;

inline void* loaded(const char* library) { return dlopen(library, RTLD_NOW | RTLD_NOLOAD); }

template <typename F>
inline void look_up(F& to, void* library, const char* name, bool needed) {
    to = library ? reinterpret_cast<F>(dlsym(library, name)) : nullptr;
    if (!to && needed) missing = name;
}

inline void look_up_all() {
    void* cpu = loaded("libtorch_cpu.so");
#define HOST_NEEDS(name) look_up(torch.name, cpu, "aoti_torch_" #name, true)
    HOST_NEEDS(empty_strided);
    HOST_NEEDS(delete_tensor_object);
    HOST_NEEDS(new_tensor_handle);
    HOST_NEEDS(_reinterpret_tensor);
    HOST_NEEDS(copy_);
    HOST_NEEDS(get_data_ptr);
    HOST_NEEDS(get_dim);
    HOST_NEEDS(get_sizes);
    HOST_NEEDS(get_strides);
    HOST_NEEDS(get_storage_offset);
    HOST_NEEDS(get_dtype);
    HOST_NEEDS(get_layout);
    HOST_NEEDS(get_device_type);
    HOST_NEEDS(get_device_index);
    HOST_NEEDS(grad_mode_is_enabled);
    HOST_NEEDS(grad_mode_set_enabled);
#undef HOST_NEEDS
    look_up(torch.is_autocast_enabled, cpu, "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", true);
    void* device = loaded(HOST_LIBRARY);
#ifdef __CUDACC__
    look_up(torch.get_current_cuda_stream, device, "aoti_torch_get_current_cuda_stream", true);
    look_up(torch.create_cuda_guard, device, "aoti_torch_create_cuda_guard", true);
    look_up(torch.delete_cuda_guard, device, "aoti_torch_delete_cuda_guard", true);
    look_up(torch.get_current_device_index, cpu, "aoti_torch_get_current_device_index", true);
#endif
    look_up(torch.convolution, device, "aoti_torch_" HOST_DEVICE "_convolution", false);
    look_up(torch.cat, device, "aoti_torch_" HOST_DEVICE "_cat", false);
    look_up(torch.mm_out, device, "aoti_torch_" HOST_DEVICE "_mm_out", false);
    look_up(torch.bmm_out, device, "aoti_torch_" HOST_DEVICE "_bmm_out", false);
    look_up(torch.addmm_out, device, "aoti_torch_" HOST_DEVICE "_addmm_out", false);
    // THPVariable_Wrap, as torch 2.12, and before that by value, which is passed as an address too.
    void* python = loaded("libtorch_python.so");
    look_up(torch.wrap, python, "_Z16THPVariable_WrapRKN2at10TensorBaseE", false);
    if (!torch.wrap) look_up(torch.wrap, python, "_Z16THPVariable_WrapN2at10TensorBaseE", true);
}

// ------------------------------------------------------------------------------------------------ failures

struct Failed {  // what is raised; "" where Python has an exception already
    const char* what;
    bool is_value;
};

[[noreturn]] inline void fail(const char* what, bool is_value = false) { throw Failed{what, is_value}; }

inline void check(Error error, const char* what) {
    if (error) fail(what);
}

// ------------------------------------------------------------------------------------------------ tensors

static const int kRank = 12;

struct Ints {
    int64_t at[kRank];
    int count;
};

template <typename... T>
inline Ints ints(T... values) {
    static_assert(sizeof...(values) <= kRank, "more dimensions than a host takes");
    return Ints{{static_cast<int64_t>(values)...}, static_cast<int>(sizeof...(values))};
}

inline int64_t quotient(int64_t a, int64_t b) {  // Python's //
    const int64_t found = a / b;
    return found - (found * b != a && (a < 0) != (b < 0));
}
inline int64_t remainder(int64_t a, int64_t b) { return a - quotient(a, b) * b; }

struct Tensor {
    Handle handle = nullptr;
    bool owned = false;

    HOST_APART void drop() {
        if (owned) torch.delete_tensor_object(handle);
        handle = nullptr;
        owned = false;
    }
    HOST_APART void own(Handle made) {
        drop();
        handle = made;
        owned = true;
    }
    HOST_APART void same(const Tensor& other) {
        if (&other == this) return;
        Handle made;
        check(torch.new_tensor_handle(other.handle, &made), "a tensor has no handle");
        own(made);
    }
    int64_t rank() const {
        int64_t found = 0;
        torch.get_dim(handle, &found);
        return found;
    }
    const int64_t* sizes() const {
        int64_t* found = nullptr;
        torch.get_sizes(handle, &found);
        return found;
    }
    const int64_t* strides() const {
        int64_t* found = nullptr;
        torch.get_strides(handle, &found);
        return found;
    }
    int64_t size(int64_t axis) const { return sizes()[axis < 0 ? axis + rank() : axis]; }
    int64_t elements() const {
        int64_t count = 1;
        const int64_t* each = sizes();
        for (int64_t axis = 0; axis < rank(); ++axis) count *= each[axis];
        return count;
    }
    int64_t offset() const {
        int64_t found = 0;
        torch.get_storage_offset(handle, &found);
        return found;
    }
    int dtype() const {
        int32_t found = -1;
        torch.get_dtype(handle, &found);
        return found;
    }
    int layout() const {  // 0 where elements lie by strides
        int32_t found = -1;
        torch.get_layout(handle, &found);
        return found;
    }
    int device() const {
        int32_t found = -1;
        torch.get_device_type(handle, &found);
        return found;
    }
    int device_index() const {
        int32_t found = -1;
        torch.get_device_index(handle, &found);
        return found;
    }
    bool is_contiguous() const {
        const int64_t *size = sizes(), *stride = strides();
        int64_t expected = 1;
        bool all = true;
        for (int64_t axis = rank() - 1; axis >= 0; --axis) {
            if (size[axis] == 0) return true;
            all &= size[axis] == 1 || stride[axis] == expected;
            expected *= size[axis];
        }
        return all;
    }
    HOST_APART bool has(const Ints& shape) const { return rank() == shape.count && !memcmp(sizes(), shape.at, sizeof(int64_t) * shape.count); }
};

inline Ints strides_of(const Ints& shape) {
    Ints found{{}, shape.count};
    int64_t step = 1;
    for (int axis = shape.count - 1; axis >= 0; --axis) {
        found.at[axis] = step;
        step *= shape.at[axis] > 1 ? shape.at[axis] : 1;
    }
    return found;
}

// An argument of a kernel's entry: the address of a tensor's first element as whatever pointer the entry takes.
struct Address {
    void* at;
    template <typename T>
    operator T*() const {
        return static_cast<T*>(at);
    }
};

// ------------------------------------------------------------------------------------------------ a call

struct Step {  // on the way to a tensor of the module: a name or a number in what an earlier step found, -1 for the module
    int parent;
    const char* name;
    bool is_number;
    bool is_tensor;
};

struct Plan {
    const char* objects;  // Python text of a tuple: what is called through Python, and constants
    const Step* steps;
    int count;
    const char* arguments;  // of forward, behind self: `t` a tensor, `n` a number, `o` any object
    int slots;
    void (*forward)(struct Call&);
};
extern const Plan plan;

static PyObject *modules_name, *parameters_name, *buffers_name;
static PyObject **step_names, **step_numbers;
static PyObject* objects;
static void *tensor_type, *parameter_type;
static int64_t handle_at;  // bytes from a Tensor object to its at::Tensor

inline void* type_of(PyObject* object) { return reinterpret_cast<void**>(object)[1]; }
inline bool is_tensor(PyObject* object) { return type_of(object) == tensor_type || type_of(object) == parameter_type; }
inline Handle handle_of(PyObject* object) { return reinterpret_cast<Handle>(reinterpret_cast<char*>(object) + handle_at); }

struct Otherwise {};  // before anything is done: Python's forward shall do it, which also says what is wrong

struct Constant {
    int place;  // among the plan's objects
};

struct Given {  // an argument of a call through Python
    const Tensor* tensor = nullptr;
    int64_t number = 0;
    int constant = -1;
    Given(const Tensor& tensor) : tensor(&tensor) {}
    Given(int64_t number) : number(number) {}
    Given(Constant constant) : constant(constant.place) {}
};

struct Call {
    PyObject* const* given;
    const double* numbers;
    const Tensor* held;  // by step
    Tensor* slots;  // the arguments first
    PyThreadState* thread = nullptr;  // null while this thread has the interpreter
    int device_index = -1;
    void* stream = nullptr;
    PyObject* returned = nullptr;

    HOST_APART void leave() {
        if (!thread) thread = PyEval_SaveThread();
    }
    HOST_APART void enter() {
        if (thread) PyEval_RestoreThread(thread);
        thread = nullptr;
    }
    HOST_APART Address pointer(const Tensor& tensor) const {
        void* found = nullptr;
        if (tensor.device() != kDevice) fail("a tensor that a kernel takes is not on the device of the input", true);
        if (!tensor.is_contiguous()) fail("a tensor that a kernel takes is not contiguous", true);
        check(torch.get_data_ptr(tensor.handle, &found), "a tensor has no memory");
        return Address{found};
    }
    HOST_APART void empty(Tensor& out, const Ints& shape, int dtype) const {
        const Ints strides = strides_of(shape);
        Handle made;
        check(torch.empty_strided(shape.count, shape.at, strides.at, dtype, kDevice, device_index, &made), "no memory for a tensor");
        out.own(made);
    }
    HOST_APART void contiguous(Tensor& out, const Tensor& from) const {
        if (from.is_contiguous()) return out.same(from);
        Ints shape{{}, static_cast<int>(from.rank())};
        if (shape.count > kRank) fail("a tensor of more than twelve dimensions");
        memcpy(shape.at, from.sizes(), sizeof(int64_t) * shape.count);
        Tensor made;
        empty(made, shape, from.dtype());
        const Error error = torch.copy_(made.handle, from.handle, 0);
        out.own(made.handle);
        check(error, "a copy failed");
    }
    HOST_APART void strided(Tensor& out, const Tensor& from, const Ints& shape, const Ints& strides, int64_t beyond) const {
        Handle made;
        check(torch._reinterpret_tensor(from.handle, shape.count, shape.at, strides.at, beyond, &made), "a view failed");
        out.own(made);
    }
    HOST_APART void view(Tensor& out, const Tensor& from, Ints shape) const {
        Tensor whole;
        contiguous(whole, from);
        int64_t count = 1, open = -1;
        for (int axis = 0; axis < shape.count; ++axis)
            if (shape.at[axis] < 0) open = axis;
            else count *= shape.at[axis];
        if (open >= 0) shape.at[open] = count ? whole.elements() / count : 0;
        if (open < 0 ? count != whole.elements() : shape.at[open] * count != whole.elements()) {
            whole.drop();
            fail("a view has another number of elements", true);
        }
        strided(out, whole, shape, strides_of(shape), 0);
        whole.drop();
    }
    HOST_APART void copy(const Tensor& to, const Tensor& from) const { check(torch.copy_(to.handle, from.handle, 0), "a copy failed"); }

    // Operators. Each answers whether it could be called here; else it is called through Python.

    HOST_APART bool convolution(Tensor& out, const Tensor& a, const Tensor& weight, const Tensor* bias, const Ints& stride, const Ints& padding,
                     const Ints& dilation, bool transposed, const Ints& beyond, int64_t groups) const {
        if (!torch.convolution || a.rank() != weight.rank() || a.dtype() != weight.dtype()) return false;
        Handle made, added = bias ? bias->handle : nullptr;
        check(torch.convolution(a.handle, weight.handle, bias ? &added : nullptr, stride.at, stride.count, padding.at, padding.count,
                                dilation.at, dilation.count, transposed, beyond.at, beyond.count, groups, &made),
              "torch's convolution failed; its reason is in the error output");
        out.own(made);
        return true;
    }
    HOST_APART bool cat(Tensor& out, std::initializer_list<const Tensor*> parts, int64_t axis) const {
        Handle handles[64], made;
        if (!torch.cat || parts.size() > 64) return false;
        int64_t count = 0;
        for (const Tensor* part : parts) handles[count++] = part->handle;
        check(torch.cat(handles, count, axis, &made), "torch's cat failed; its reason is in the error output");
        out.own(made);
        return true;
    }
    HOST_APART bool mm(Tensor& out, const Tensor& a, const Tensor& b) const {
        if (!torch.mm_out || a.rank() != 2 || b.rank() != 2 || a.dtype() != b.dtype()) return false;
        empty(out, ints(a.size(0), b.size(1)), a.dtype());
        check(torch.mm_out(out.handle, a.handle, b.handle), "torch's mm failed; its reason is in the error output");
        return true;
    }
    HOST_APART bool bmm(Tensor& out, const Tensor& a, const Tensor& b) const {
        if (!torch.bmm_out || a.rank() != 3 || b.rank() != 3 || a.size(0) != b.size(0) || a.dtype() != b.dtype()) return false;
        empty(out, ints(a.size(0), a.size(1), b.size(2)), a.dtype());
        check(torch.bmm_out(out.handle, a.handle, b.handle), "torch's bmm failed; its reason is in the error output");
        return true;
    }
    HOST_APART bool addmm(Tensor& out, const Tensor& bias, const Tensor& a, const Tensor& b) const {
        if (!torch.addmm_out || a.rank() != 2 || b.rank() != 2 || a.dtype() != b.dtype() || a.dtype() != bias.dtype()) return false;
        empty(out, ints(a.size(0), b.size(1)), a.dtype());
        check(torch.addmm_out(out.handle, bias.handle, a.handle, b.handle, 1, 1), "torch's addmm failed; its reason is in the error output");
        return true;
    }
    // As at::linear: rows are all axes but the last, the weight is read transposed.
    HOST_APART bool linear(Tensor& out, const Tensor& a, const Tensor& weight, const Tensor* bias) const {
        if (a.rank() < 2 || a.rank() > kRank || weight.rank() != 2 || !a.is_contiguous() || !weight.is_contiguous()) return false;
        const int64_t depth = weight.size(1), columns = weight.size(0);
        if (a.size(-1) != depth || !depth) return false;
        Tensor rows, turned;
        view(rows, a, ints(-1, depth));
        strided(turned, weight, ints(depth, columns), ints(1, depth), 0);
        bool done = false;
        try {
            done = bias ? addmm(out, *bias, rows, turned) : mm(out, rows, turned);
        } catch (...) {
            rows.drop(), turned.drop();
            throw;
        }
        rows.drop(), turned.drop();
        if (done && a.rank() > 2) {
            Ints shape{{}, static_cast<int>(a.rank())};
            memcpy(shape.at, a.sizes(), sizeof(int64_t) * shape.count);
            shape.at[shape.count - 1] = columns;
            Tensor wide = out;
            out.owned = false;
            strided(out, wide, shape, strides_of(shape), 0);
            wide.drop();
        }
        return done;
    }
    HOST_APART bool matmul(Tensor& out, const Tensor& a, const Tensor& b) const {
        return a.rank() == 2 ? mm(out, a, b) : bmm(out, a, b);
    }

    // Python. Whoever calls these has the interpreter; new references are given on to the tuple or list.

    PyObject* good(PyObject* object) const {
        if (!object) fail("");
        return object;
    }
    HOST_APART PyObject* of(const Tensor& tensor) const {
        Handle made;
        check(torch.new_tensor_handle(tensor.handle, &made), "a tensor has no handle");
        PyObject* object = torch.wrap(made);
        torch.delete_tensor_object(made);
        return good(object);
    }
    PyObject* of(int64_t number) const { return good(PyLong_FromLongLong(number)); }
    PyObject* of(double number) const { return good(PyFloat_FromDouble(number)); }
    HOST_APART PyObject* object(int number) const { return good(PySequence_GetItem(objects, number)); }
    PyObject* argument(int number) const {
        Py_IncRef(given[number]);
        return given[number];
    }
    PyObject* module() const {
        Py_IncRef(given[-1]);
        return given[-1];
    }
    bool differ(PyObject* a, PyObject* b) const {
        const int found = PyObject_RichCompareBool(a, b, 3);
        Py_DecRef(a);
        Py_DecRef(b);
        if (found < 0) {  // a tensor of several numbers
            PyErr_Clear();
            throw Otherwise{};
        }
        return found;
    }
    int64_t number(PyObject* object) const {
        const bool whole = type_of(object) == &PyLong_Type || type_of(object) == &PyBool_Type;
        const int64_t found = whole ? PyLong_AsLongLong(object) : 0;
        Py_DecRef(object);
        if (!whole) throw Otherwise{};
        return found;
    }
    HOST_APART PyObject* tuple(std::initializer_list<PyObject*> parts) const {
        PyObject* made = good(PyTuple_New(static_cast<intptr_t>(parts.size())));
        intptr_t place = 0;
        for (PyObject* part : parts) PyTuple_SetItem(made, place++, part);
        return made;
    }
    HOST_APART PyObject* list(std::initializer_list<PyObject*> parts) const {
        PyObject* made = good(PyList_New(static_cast<intptr_t>(parts.size())));
        intptr_t place = 0;
        for (PyObject* part : parts) PyList_SetItem(made, place++, part);
        return made;
    }
    struct Named {
        const char* name;
        PyObject* value;
    };
    HOST_APART PyObject* dict(std::initializer_list<Named> parts) const {
        PyObject* made = good(PyDict_New());
        for (const Named& part : parts) {
            PyDict_SetItemString(made, part.name, part.value);
            Py_DecRef(part.value);
        }
        return made;
    }
    HOST_APART PyObject* call(PyObject* function, PyObject* positional, PyObject* named = nullptr) const {
        PyObject* made = PyObject_Call(function, positional, named);
        Py_DecRef(function);
        Py_DecRef(positional);
        if (named) Py_DecRef(named);
        return good(made);
    }
    HOST_APART PyObject* method(PyObject* of_object, const char* name) const {
        PyObject* found = PyObject_GetAttrString(of_object, name);
        Py_DecRef(of_object);
        return good(found);
    }
    HOST_APART void take(PyObject* object, Tensor& out) const {
        if (!is_tensor(object)) {
            Py_DecRef(object);
            fail("an operator returned something that is no tensor");
        }
        Handle made;
        const Error error = torch.new_tensor_handle(handle_of(object), &made);
        Py_DecRef(object);
        check(error, "a tensor has no handle");
        out.own(made);
    }
    HOST_APART void take(PyObject* object, std::initializer_list<Tensor*> outs) const {
        intptr_t place = 0;
        for (Tensor* out : outs) {
            PyObject* part = PySequence_GetItem(object, place++);
            if (!part) Py_DecRef(object);
            good(part);
            if (out) take(part, *out);
            else Py_DecRef(part);
        }
        Py_DecRef(object);
    }
    void drop(PyObject* object) const { Py_DecRef(object); }

    // The usual call: tensors, integers and constants in, one tensor out.
    HOST_APART void python(Tensor& out, int function, std::initializer_list<Given> arguments) {
        enter();
        PyObject* positional = good(PyTuple_New(static_cast<intptr_t>(arguments.size())));
        intptr_t place = 0;
        for (const Given& one : arguments)
            PyTuple_SetItem(positional, place++, one.tensor ? of(*one.tensor) : one.constant >= 0 ? object(one.constant) : of(one.number));
        take(call(object(function), positional), out);
        leave();
    }
};

// The part of a statement that needs the interpreter.
struct Inside {
    Call& call;
    explicit Inside(Call& call) : call(call) { call.enter(); }
    ~Inside() { call.leave(); }
};

// The module's tensors, found anew in each call: whoever replaces a parameter or a layer finds the new one here.
inline PyObject* found_in(PyObject* holder, PyObject* table, PyObject* name) {
    PyObject* all = PyObject_GenericGetAttr(holder, table);
    if (!all) {
        PyErr_Clear();
        return nullptr;
    }
    PyObject* found = PyDict_GetItem(all, name);
    if (found) Py_IncRef(found);
    Py_DecRef(all);
    return found;
}

inline void find_steps(PyObject* module, PyObject** found, Tensor* held) {
    for (int at = 0; at < plan.count; ++at) {
        const Step& step = plan.steps[at];
        PyObject *parent = step.parent < 0 ? module : found[step.parent], *next = nullptr;
        if (step.is_tensor) {
            next = found_in(parent, parameters_name, step_names[at]);
            if (!next) next = found_in(parent, buffers_name, step_names[at]);
        } else {
            next = found_in(parent, modules_name, step_names[at]);
        }
        if (!next) next = step.is_number ? PyObject_GetItem(parent, step_numbers[at]) : PyObject_GetAttr(parent, step_names[at]);
        if (!next) PyErr_Clear();
        found[at] = next;
        if (!next || (step.is_tensor && !is_tensor(next))) throw Otherwise{};
        if (step.is_tensor) held[at].handle = handle_of(next);
    }
}

inline PyObject* run(PyObject*, PyObject* const* given, intptr_t count) {
    const int arguments = static_cast<int>(strlen(plan.arguments));
    Py_IncRef(&_Py_NotImplementedStruct);
    if (count != arguments + 1) return &_Py_NotImplementedStruct;
    PyObject** found = static_cast<PyObject**>(__builtin_alloca(sizeof(PyObject*) * (plan.count + 1)));
    Tensor* held = static_cast<Tensor*>(__builtin_alloca(sizeof(Tensor) * (plan.count + 1)));
    Tensor* slots = static_cast<Tensor*>(__builtin_alloca(sizeof(Tensor) * (plan.slots + 1)));
    double* numbers = static_cast<double*>(__builtin_alloca(sizeof(double) * (arguments + 1)));
    memset(found, 0, sizeof(PyObject*) * (plan.count + 1));
    memset(static_cast<void*>(held), 0, sizeof(Tensor) * (plan.count + 1));
    memset(static_cast<void*>(slots), 0, sizeof(Tensor) * (plan.slots + 1));
    Call call{given + 1, numbers, held, slots};
#ifdef __CUDACC__
    void* guard = nullptr;
#endif
    const bool grad = torch.grad_mode_is_enabled();
    bool otherwise = torch.is_autocast_enabled(kDevice);  // library calls would answer in other types
    if (otherwise) return &_Py_NotImplementedStruct;
    try {
        for (int at = 0; at < arguments; ++at) {
            PyObject* value = given[at + 1];
            if (plan.arguments[at] == 't') {
                if (!is_tensor(value)) throw Otherwise{};
                slots[at].handle = handle_of(value);
                if (slots[at].device() != kDevice) throw Otherwise{};
                if (call.device_index == -1) call.device_index = slots[at].device_index();
            } else if (plan.arguments[at] == 'n') {
                if (type_of(value) != &PyFloat_Type && type_of(value) != &PyLong_Type) throw Otherwise{};
                numbers[at] = PyFloat_AsDouble(value);
                if (PyErr_Occurred()) {
                    PyErr_Clear();
                    throw Otherwise{};
                }
            }
        }
        find_steps(given[0], found, held);
#ifdef __CUDACC__
        int32_t now = -1;
        torch.get_current_device_index(&now);
        if (now != call.device_index) check(torch.create_cuda_guard(call.device_index, &guard), "the device cannot be made the current one");
        check(torch.get_current_cuda_stream(call.device_index, &call.stream), "the device has no stream");
#endif
        if (grad) torch.grad_mode_set_enabled(false);
        call.leave();
        plan.forward(call);
    } catch (const Otherwise&) {
        otherwise = true;
    } catch (const Failed& failed) {
        call.enter();
        if (*failed.what) PyErr_Format(failed.is_value ? PyExc_ValueError : PyExc_RuntimeError, "%s", failed.what);
    }
    call.enter();
    if (grad) torch.grad_mode_set_enabled(true);
#ifdef __CUDACC__
    if (guard) torch.delete_cuda_guard(guard);
#endif
    for (int at = 0; at < plan.slots; ++at) slots[at].drop();
    for (int at = 0; at < plan.count; ++at)
        if (found[at]) Py_DecRef(found[at]);
    if (otherwise) return &_Py_NotImplementedStruct;
    Py_DecRef(&_Py_NotImplementedStruct);
    return call.returned;
}

}  // namespace host

struct PyMethodDef {
    const char* name;
    void* function;
    int flags;
    const char* text;
};

extern "C" const char* host_objects() { return host::plan.objects; }

// Forward as a function of Python: (module, arguments...) -> what forward returns, or NotImplemented where Python's forward shall do it.
// `objects`: the tuple that host_objects() is the text of; `probe`: a Parameter, whose at::TensorImpl is at `implementation`.
extern "C" PyObject* host_bind(PyObject* objects, PyObject* probe, void* implementation, PyObject* tensor_type, PyObject* parameter_type) {
    using namespace host;
    static PyMethodDef method = {"forward", reinterpret_cast<void*>(&run), 0x0080, nullptr};  // METH_FASTCALL
    look_up_all();
    handle_at = 0;
    for (int64_t at = 16; at <= 64 && !handle_at; at += 8)
        if (*reinterpret_cast<void**>(reinterpret_cast<char*>(probe) + at) == implementation) handle_at = at;
    if (!handle_at || type_of(probe) != static_cast<void*>(parameter_type)) missing = "a tensor's layout";
    if (missing) return PyErr_Format(PyExc_ImportError, "this torch and Python lack what a native forward needs: %s", missing);
    host::objects = objects;
    host::tensor_type = tensor_type;
    host::parameter_type = parameter_type;
    for (PyObject* kept : {objects, tensor_type, parameter_type}) Py_IncRef(kept);
    modules_name = PyUnicode_InternFromString("_modules");
    parameters_name = PyUnicode_InternFromString("_parameters");
    buffers_name = PyUnicode_InternFromString("_buffers");
    step_names = new PyObject*[plan.count + 1];
    step_numbers = new PyObject*[plan.count + 1];
    for (int at = 0; at < plan.count; ++at) {
        const char* name = plan.steps[at].name;
        step_names[at] = PyUnicode_InternFromString(name);
        long long number = 0;
        for (const char* digit = name; plan.steps[at].is_number && *digit; ++digit) number = number * 10 + (*digit - '0');
        step_numbers[at] = plan.steps[at].is_number ? PyLong_FromLongLong(number) : nullptr;
    }
    return PyCFunction_NewEx(&method, nullptr, nullptr);
}
