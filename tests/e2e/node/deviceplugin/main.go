// The one binary of the stand-in image: a pause process and a device plugin.
//
//	pause                                             (when called by that name) sleep until told to stop
//	device-plugin --resource nvidia.com/gpu --count 1
//
// What is real: the device plugin protocol (v1beta1, as kubelet 1.20 and 1.34 both speak it), the
// registration, the health stream, the re-registration after a kubelet restart. What stands in: the
// devices. There is no card behind them, and a container that is given one gets an environment
// variable and nothing else.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	pollInterval    = 250 * time.Millisecond
	registerTimeout = 5 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if filepath.Base(os.Args[0]) == "pause" {
		<-ctx.Done()
		return
	}
	resource := flag.String("resource", "nvidia.com/gpu", "extended resource to advertise")
	count := flag.Int("count", 1, "number of devices")
	folder := flag.String("folder", v1beta1.DevicePluginPath, "the kubelet's device plugin folder")
	flag.Parse()
	serveForever(ctx, *folder, *resource, *count)
}

// serveForever keeps one registered server up. A kubelet that starts removes every socket of its
// plugin folder and makes a new kubelet.sock: both are the sign to begin again.
func serveForever(ctx context.Context, folder, resource string, count int) {
	kubeletSocket := filepath.Join(folder, filepath.Base(v1beta1.KubeletSocket))
	ownSocket := filepath.Join(folder, "standin-"+strings.NewReplacer("/", "-").Replace(resource)+".sock")
	lastError := ""
	for ctx.Err() == nil {
		kubelet := identity(kubeletSocket)
		server, err := start(folder, ownSocket, resource, count)
		if err == nil {
			lastError = ""
			log.Printf("registered %s with %d device(s)", resource, count)
			own := identity(ownSocket)
			for ctx.Err() == nil && identity(kubeletSocket) == kubelet && identity(ownSocket) == own {
				sleep(ctx, pollInterval)
			}
			server.Stop()
			log.Printf("stopped serving %s", resource)
		} else if err.Error() != lastError {
			lastError = err.Error()
			log.Printf("not registered, will try again: %v", err)
		}
		sleep(ctx, pollInterval)
	}
}

func start(folder, ownSocket, resource string, count int) (*grpc.Server, error) {
	if err := os.Remove(ownSocket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	listener, err := net.Listen("unix", ownSocket)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, &plugin{resource: resource, count: count})
	go func() { _ = server.Serve(listener) }()
	if err := register(filepath.Join(folder, filepath.Base(v1beta1.KubeletSocket)), filepath.Base(ownSocket), resource); err != nil {
		server.Stop()
		return nil, err
	}
	return server, nil
}

func register(kubeletSocket, endpoint, resource string) error {
	connection, err := grpc.NewClient("unix://"+kubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), registerTimeout)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(connection).Register(ctx, &v1beta1.RegisterRequest{
		Version:      v1beta1.Version,
		Endpoint:     endpoint,
		ResourceName: resource,
		Options:      &v1beta1.DevicePluginOptions{},
	})
	return err
}

// identity tells one socket from the next one made under the same path; "" when there is none.
func identity(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.ModTime().String()
	}
	return fmt.Sprintf("%d/%d.%d", stat.Ino, stat.Ctim.Sec, stat.Ctim.Nsec)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

type plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	resource string
	count    int
}

func (p *plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	devices := make([]*v1beta1.Device, 0, p.count)
	for i := range p.count {
		devices = append(devices, &v1beta1.Device{ID: fmt.Sprintf("standin-%d", i), Health: v1beta1.Healthy})
	}
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	response := &v1beta1.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs: map[string]string{"GPUFIX_STANDIN_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}
