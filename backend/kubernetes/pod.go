package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// Names of a pod's volumes.
const (
	volumeGuest     = "guest"
	volumeWorkspace = "workspace"
	volumeTmp       = "tmp"
	volumeShm       = "shm"
	volumeAccounts  = "accounts"
)

// Size limits, in bytes, for the guest agent's volume and for a pod's other data on the node besides the workspace.
const (
	guestBytes   = 64 << 20
	scratchBytes = 16 << 20
)

// manifest returns the pod for a planned sandbox.
func (d *driver) manifest(p *plan) *corev1.Pod {
	meta, l := p.metaOf(backend.RoleSandbox), p.Spec.Limits
	maps.Copy(meta.Labels, d.opts.Labels)
	maps.Copy(meta.Annotations, d.opts.Annotations)
	pod := &corev1.Pod{ObjectMeta: meta, Spec: d.podSpec(p.User)}
	s := &pod.Spec
	s.Containers = []corev1.Container{{
		Name: containerName, Image: p.Ref, ImagePullPolicy: pullPolicy(p.Spec.Pull),
		Command: p.command(), WorkingDir: "/",
		SecurityContext: confined(p.Spec.Root != backend.RootWritable),
		Env:             environment(kit.GuestEnv()), Resources: d.resources(p),
		VolumeMounts: []corev1.VolumeMount{
			{Name: volumeWorkspace, MountPath: backend.Workdir},
			{Name: volumeTmp, MountPath: "/tmp"}, {Name: volumeShm, MountPath: "/dev/shm"},
		},
	}}
	s.Volumes = []corev1.Volume{
		d.workspaceVolume(p),
		emptyDir(volumeTmp, corev1.StorageMediumMemory, l.TmpBytes),
		emptyDir(volumeShm, corev1.StorageMediumMemory, l.ShmBytes), // the runtime's own may be as large as the memory
	}
	if p.Spec.Network == backend.NetworkBridge {
		s.DNSPolicy = corev1.DNSClusterFirst
	}
	if p.Spec.OCIRuntime != "" {
		s.RuntimeClassName = &p.Spec.OCIRuntime
	}
	if arch, ok := strings.CutPrefix(p.Spec.Platform, "linux/"); ok {
		s.NodeSelector = maps.Clone(s.NodeSelector)
		if s.NodeSelector == nil {
			s.NodeSelector = map[string]string{}
		}
		s.NodeSelector[corev1.LabelArchStable] = arch
	}
	nameUser(pod, p)
	d.deliverGuest(s)
	return pod
}

// nameUser adds files with the sandbox's user, which the kubelet writes from annotations. They replace the files of the
// image, which no process can read before the start of the container.
func nameUser(pod *corev1.Pod, p *plan) {
	if !kit.NamesUser(p.User, p.Spec.Root) {
		return
	}
	accounts := kit.NoAccounts()
	// These are the numbers of most images.
	for _, entry := range []string{"daemon:x:1:", "bin:x:2:", "sys:x:3:", "mail:x:8:", "www-data:x:33:"} {
		_, id, _ := strings.Cut(entry, ":x:")
		accounts["passwd"] = fmt.Appendf(accounts["passwd"], "%s%s:/:/usr/sbin/nologin\n", entry, id)
		accounts["group"] = fmt.Appendf(accounts["group"], "%s\n", entry)
	}
	named, main, source := accounts.With(p.User), &pod.Spec.Containers[0], &corev1.DownwardAPIVolumeSource{}
	for _, name := range kit.AccountFiles() {
		annotation := backend.LabelPrefix + name
		pod.Annotations[annotation] = string(named[name])
		source.Items = append(source.Items, corev1.DownwardAPIVolumeFile{
			Path: name, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + annotation + "']"},
		})
		file := corev1.VolumeMount{Name: volumeAccounts, MountPath: "/etc/" + name, SubPath: name, ReadOnly: true}
		main.VolumeMounts = append(main.VolumeMounts, file)
	}
	volume := corev1.Volume{Name: volumeAccounts, VolumeSource: corev1.VolumeSource{DownwardAPI: source}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
}

// command returns the sandbox's main process. It sets the limits of processes, of which a pod has none.
func (p *plan) command() []string {
	l := p.Spec.Limits
	args := append([]string{embed.Path}, p.Record(backend.WorkspaceWatched).GuestArgs(p.Root)...)
	return append(args, fmt.Sprintf("--open-files=%d", kit.OpenFiles(l)),
		fmt.Sprintf("--file-bytes=%d", kit.FileBytes(l, backend.WorkspaceWatched, p.Root)))
}

// podSpec returns the common settings of all pods of the driver.
func (d *driver) podSpec(u kit.User) corev1.PodSpec {
	uid, gid := int64(u.UID), int64(u.GID)
	s := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		TerminationGracePeriodSeconds: new(int64(1)), // the guest agent has no state to save
		Hostname:                      kit.Hostname, NodeSelector: d.opts.NodeSelector, Tolerations: d.opts.Tolerations,
		PriorityClassName: d.opts.PriorityClass,
		DNSPolicy:         corev1.DNSDefault, // the pod resolves no cluster names
		SecurityContext: &corev1.PodSecurityContext{
			RunAsUser: &uid, RunAsGroup: &gid, RunAsNonRoot: new(uid != 0),
			FSGroup: &gid, FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	for _, secret := range d.opts.ImagePullSecrets {
		s.ImagePullSecrets = append(s.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	return s
}

// confined returns the security context of every container.
func confined(readonly bool) *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), Privileged: new(false), ReadOnlyRootFilesystem: &readonly,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// deliverGuest makes the guest agent available to the first container, unless the image contains the guest agent.
func (d *driver) deliverGuest(s *corev1.PodSpec) {
	main := &s.Containers[0]
	guest := corev1.VolumeMount{Name: volumeGuest, MountPath: embed.Dir, ReadOnly: true}
	switch {
	case d.opts.GuestImage == "":
		return
	case d.opts.GuestVolume:
		s.Volumes = append(s.Volumes, corev1.Volume{Name: volumeGuest, VolumeSource: corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: d.opts.GuestImage, PullPolicy: corev1.PullIfNotPresent},
		}})
		guest.SubPath = strings.TrimPrefix(embed.Dir, "/")
	default:
		s.Volumes = append(s.Volumes, emptyDir(volumeGuest, corev1.StorageMediumDefault, guestBytes))
		s.InitContainers = []corev1.Container{{
			Name: volumeGuest, Image: d.opts.GuestImage, ImagePullPolicy: corev1.PullIfNotPresent,
			Command:         []string{embed.Path, "install", "/guest", "/volume/" + volumeWorkspace},
			SecurityContext: confined(true), Resources: main.Resources,
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError, // for endOf
			VolumeMounts: []corev1.VolumeMount{
				{Name: volumeGuest, MountPath: "/guest"}, {Name: volumeWorkspace, MountPath: "/volume"},
			},
		}}
		main.VolumeMounts[0].SubPath = volumeWorkspace // this subdirectory belongs to the user, unlike the volume's root
	}
	main.VolumeMounts = append(main.VolumeMounts, guest)
}

// resources returns the resources of a planned sandbox. The limit for the node's disk is twice the guest agent's limit,
// because the guest agent may react late. If the pod exceeds the limit, the node evicts it before other pods run out of
// space. A claim does not use the node's disk.
func (d *driver) resources(p *plan) corev1.ResourceRequirements {
	local := int64(0)
	if d.opts.StorageClass == "" {
		local = p.Spec.Limits.WorkspaceBytes
	}
	r := resources(p.Spec.Limits, p.Asked)
	r.Requests[corev1.ResourceEphemeralStorage] = quantity(local + guestBytes + scratchBytes)
	r.Limits[corev1.ResourceEphemeralStorage] = quantity(2*(local+p.Root) + guestBytes + scratchBytes)
	return r
}

// resources returns the limits enforced by a node and the reserved resources. If the user requests a memory size, all
// of it is reserved to prevent its use by other pods. Otherwise a quarter of the limit is reserved. For CPU, an eighth
// of the limit is reserved, because most sandboxes are idle most of the time.
func resources(l, asked backend.Limits) corev1.ResourceRequirements {
	reserved := l.MemoryBytes / 4
	if asked.MemoryBytes > 0 {
		reserved = l.MemoryBytes
	}
	list := func(millis, memory int64) corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewMilliQuantity(millis, resource.DecimalSI),
			corev1.ResourceMemory: quantity(memory + kit.GuestMemory),

			corev1.ResourceEphemeralStorage: quantity(guestBytes + scratchBytes),
		}
	}
	return corev1.ResourceRequirements{
		Limits: list(l.CPUMillis, l.MemoryBytes), Requests: list(max(l.CPUMillis/8, 1), reserved),
	}
}

func quantity(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }

func emptyDir(name string, medium corev1.StorageMedium, size int64) corev1.Volume {
	e := &corev1.EmptyDirVolumeSource{Medium: medium}
	if size > 0 {
		e.SizeLimit = new(quantity(size))
	}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: e}}
}

// workspaceVolume returns the claim of the session, or an emptyDir on the node. The guest agent enforces the limit of
// the emptyDir. If the emptyDir grows much larger anyway, the node evicts the pod.
func (d *driver) workspaceVolume(p *plan) corev1.Volume {
	if d.opts.StorageClass == "" {
		return emptyDir(volumeWorkspace, corev1.StorageMediumDefault, 2*p.Spec.Limits.WorkspaceBytes)
	}
	return corev1.Volume{Name: volumeWorkspace, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: p.name},
	}}
}

// claim returns the claim for a session's workspace.
func (d *driver) claim(p *plan) *corev1.PersistentVolumeClaim {
	meta := p.metaOf(backend.RoleWorkspace)
	return &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &d.opts.StorageClass, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceStorage: quantity(max(p.Spec.Limits.WorkspaceBytes, 1<<20)),
		}},
	}}
}

func pullPolicy(p backend.PullPolicy) corev1.PullPolicy {
	switch p {
	case backend.PullAlways:
		return corev1.PullAlways
	case backend.PullNever:
		return corev1.PullNever
	}
	return corev1.PullIfNotPresent
}

func environment(env []string) []corev1.EnvVar {
	vars := make([]corev1.EnvVar, 0, len(env))
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		vars = append(vars, corev1.EnvVar{Name: k, Value: v})
	}
	return vars
}

// imageEnv returns the image's variables in a container's environment.
func imageEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		k, _, _ := strings.Cut(e, "=")
		return k == "HOSTNAME" || strings.HasPrefix(k, "KUBERNETES_") || slices.Contains(kit.GuestEnv(), e)
	})
}

// again returns the manifest for a new pod of the same sandbox, based on the existing pod. It omits the labels,
// annotations, containers, and volumes of other programs, because they may describe the existing pod, for example its
// address, and are added again.
func (d *driver) again(pod *corev1.Pod) *corev1.Pod {
	meta := metav1.ObjectMeta{Name: pod.Name, Labels: maps.Clone(pod.Labels), Annotations: maps.Clone(pod.Annotations)}
	foreign := func(key, _ string) bool { return !reserved(key) }
	maps.DeleteFunc(meta.Labels, foreign)
	maps.DeleteFunc(meta.Annotations, foreign)
	maps.Copy(meta.Labels, d.opts.Labels)
	maps.Copy(meta.Annotations, d.opts.Annotations)
	next := &corev1.Pod{ObjectMeta: meta, Spec: *pod.Spec.DeepCopy()}
	s := &next.Spec
	// The server computes the priority from the class.
	s.NodeName, s.ActiveDeadlineSeconds, s.Priority, s.PreemptionPolicy = "", nil, nil, nil
	s.EphemeralContainers, s.Overhead = nil, nil // added by `kubectl debug`; not allowed in new pods
	s.InitContainers, s.Containers = withoutInjected(s.InitContainers), withoutInjected(s.Containers)
	s.Volumes = slices.DeleteFunc(s.Volumes, func(v corev1.Volume) bool { return !isVolume(v.Name) })
	return next
}

// withoutInjected returns the driver's containers with the driver's mounts.
func withoutInjected(all []corev1.Container) []corev1.Container {
	other := func(c corev1.Container) bool { return c.Name != containerName && c.Name != volumeGuest }
	all = slices.DeleteFunc(all, other)
	for i := range all {
		mounts := &all[i].VolumeMounts
		*mounts = slices.DeleteFunc(*mounts, func(m corev1.VolumeMount) bool { return !isVolume(m.Name) })
	}
	return all
}

func isVolume(name string) bool {
	return slices.Contains([]string{volumeGuest, volumeWorkspace, volumeTmp, volumeShm, volumeAccounts}, name)
}
